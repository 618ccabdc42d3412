"""The sum of squares of gradients, of which some are sharded over several processes.

An *axis* is a process group along a dimension of a DTensor's mesh, or one of ``norm_groups``. A
parameter is sharded over some axes of its stage. Along all other axes, each process has a copy, so
the squares of its gradient are divided by the number of copies::

    mesh (dp, tp), 2 x 2      weight: shards over dp and tp     norm: shards over dp
    squares of a process      weight's + norm's / 2     ── over dp ──  ── over tp ──▶  one number
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from math import prod
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch import nn

from pipeloom.ir.errors import InputError

from ..dtensors import is_dtensor, local
from ..rank.context import RankContext
from ..transport import wait_for

Processes: TypeAlias = tuple[int, ...]
Axes: TypeAlias = frozenset[Processes]
Squares: TypeAlias = Callable[[Sequence[nn.Parameter]], float]


def processes_of(group: dist.ProcessGroup | None) -> Processes:
    """Returns the global ranks of the processes in ``group``, in the group's order.

    For None, returns those of all processes.
    """
    return tuple(dist.get_process_group_ranks(group))


def mesh_axes(parameter: nn.Parameter) -> dict[Processes, tuple[dist.ProcessGroup, bool]]:
    """Returns the axes of a DTensor's mesh that contain more than one process.

    Maps each axis (a tuple of global ranks) to its process group and to whether the parameter is
    sharded over it. Returns an empty dict for plain tensors.
    """
    if not is_dtensor(parameter):
        return {}
    mesh = parameter.device_mesh
    groups = [mesh.get_group(i) for i in range(mesh.ndim)]
    return {
        processes_of(group): (group, not placement.is_replicate())
        for group, placement in zip(groups, parameter.placements, strict=True)
        if group.size() > 1
    }


def sharded_over(parameter: nn.Parameter) -> Axes:
    """Returns the axes over which a DTensor is sharded; an empty set for plain tensors."""
    return frozenset(axis for axis, (_, shards) in mesh_axes(parameter).items() if shards)


def widest(axes: Sequence[Processes]) -> list[Processes]:
    """Returns those of ``axes`` that are not a proper subset of another one.

    Every process of any axis is also in an axis of the result, so sums over these include it.
    """
    return [axis for axis in axes if not any({*axis} < {*other} for other in axes)]


class ShardSquares:
    """A function of parameters that returns the sum of squares of all elements of their gradients.

    Each element counts once, whether it is in a shard of another process or has copies. ``groups``:
    all axes of this rank's parameters with their process groups, in the same order in all
    processes. ``axes``: by the ``id`` of each sharded parameter, the axes over which it is sharded.
    All processes of the groups create and call it, and get the same bits. Raises InputError unless
    sums over one of the widest axes after the other include each process exactly once.
    """

    def __init__(
        self,
        context: RankContext,
        groups: Mapping[Processes, dist.ProcessGroup],
        axes: Mapping[int, Axes],
    ) -> None:
        self._context, self._groups = context, [groups[axis] for axis in widest([*groups])]
        self._shards = {key: prod(map(len, over)) for key, over in axes.items()}
        self._processes = prod(group.size() for group in self._groups)
        _check_order(self._groups)
        if self._sum(1.0) != self._processes:
            every = sorted({process for axis in groups for process in axis})
            raise InputError(
                f"norm_groups: expected groups that make up one mesh of the processes {every}"
            )

    def __call__(self, parameters: Sequence[nn.Parameter]) -> float:
        by_shards: dict[int, list[nn.Parameter]] = {}
        for parameter in parameters:
            by_shards.setdefault(self._shards.get(id(parameter), 1), []).append(parameter)
        found = (squares_of(own) * n / self._processes for n, own in by_shards.items())
        return self._sum(sum(found))

    def _sum(self, value: float) -> float:
        for group in self._groups:
            value = summed(self._context, value, group, "the norm over the shards")
        return value


def _check_order(groups: Sequence[dist.ProcessGroup]) -> None:
    """Raises InputError if a process of one of ``groups`` has it at another position of its list.

    Sums would wait for each other. The processes compare group after group in sorted order, which
    is the same for all of them.
    """
    wrong = []
    for axis, number in sorted((processes_of(group), n) for n, group in enumerate(groups)):
        rows: list[Any] = [None] * len(axis)
        dist.all_gather_object(rows, number, group=groups[number])
        wrong += [axis] if len({*rows}) > 1 else []
    if wrong:
        raise InputError(f"norm_groups: group {list(wrong[0])}: expected one place in all lists")


@torch.no_grad()
def squares_of(parameters: Sequence[nn.Parameter]) -> float:
    """Returns the sum of squares of the parameters' gradients; of DTensors, only of the local part.

    The host waits once for the device.
    """
    gradients = [local(p.grad) for p in parameters if p.grad is not None]
    if not gradients:
        return 0.0
    wide = [torch.float32 if g.dtype.itemsize < 4 else g.dtype for g in gradients]
    pairs = zip(gradients, wide, strict=True)
    norms = [torch.linalg.vector_norm(g, dtype=dtype).double() for g, dtype in pairs]
    return float(torch.stack(norms).square().sum())


def summed(context: RankContext, value: float, group: dist.ProcessGroup, what: str) -> float:
    """Returns the sum of ``value`` over the processes of ``group``, with the same bits on all.

    The host waits for the all-reduce. On a CPU, raises ConnectionError if it takes longer than the
    timeout or a connection is lost. ``what``: the name of this sum in error messages.
    """
    total = torch.tensor(value, dtype=torch.float64, device=context.device)
    wait(context, dist.all_reduce(total, group=group, async_op=True), what)
    return float(total)


def wait(context: RankContext, work: dist.Work | None, what: str) -> None:
    """Waits for the collective ``work`` over replicas or shards; on a GPU, only the stream waits.

    On a CPU, raises ConnectionError if it takes longer than the timeout or a connection is lost.
    ``what``: the name of the collective in error messages.
    """
    assert work is not None
    on_host, seconds = context.device.type == "cpu", context.options.timeout
    timeout = timedelta(seconds=seconds) if on_host else None
    wait_for(work, timeout, what)
