"""The sum of squares of gradients, some of them sharded, over all processes that have parts.

A parameter is sharded over some *axes*: process groups of its mesh or of ``norm_groups``. Along all
other axes of its stage, each process has a copy, so its squares are divided by the number of
copies::

    mesh (dp, tp), 2 x 2      weight: shards over dp and tp     norm: shards over dp
    squares of a process      weight's + norm's / 2     ── over dp ──  ── over tp ──▶  one number
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from math import prod
from operator import eq
from typing import Any, TypeAlias, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from ..dtensors import is_dtensor, local
from ..rank.context import RankContext
from ..transport import wait_for

Key = TypeVar("Key")
Processes: TypeAlias = tuple[int, ...]
Axes: TypeAlias = frozenset[Processes]
Squares: TypeAlias = Callable[[Sequence[nn.Parameter]], float]


def processes_of(group: dist.ProcessGroup | None) -> Processes:
    """Returns the global ranks of the group's processes."""
    return tuple(dist.get_process_group_ranks(group))


def unlike(
    own: Mapping[Key, Any], group: dist.ProcessGroup, alike: Callable[[Any, Any], bool] = eq
) -> Key | None:
    """Returns the first key whose values differ between processes, or that some of them lack.

    Returns None if there is no such key. All processes of ``group`` call it.
    """
    rows: list[Any] = [None] * group.size()
    dist.all_gather_object(rows, own, group=group)
    for key in sorted(set().union(*rows)):
        found = [row[key] for row in rows if key in row]
        if len(found) < len(rows) or not all(alike(found[0], other) for other in found):
            return key  # type: ignore[no-any-return]
    return None


def mesh_axes(parameter: nn.Parameter) -> dict[Processes, tuple[dist.ProcessGroup, bool]]:
    """Returns the axes of a DTensor's mesh that have more than one process; {} for other tensors.

    Maps each to its process group and whether the parameter is sharded over it.
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
    """Returns the axes over which a DTensor is sharded."""
    return frozenset(axis for axis, (_, shards) in mesh_axes(parameter).items() if shards)


def widest(axes: Sequence[Processes]) -> list[Processes]:
    """Returns the maximal ``axes``: sums over these include the processes of all axes."""
    return [axis for axis in axes if not any({*axis} < {*other} for other in axes)]


class ShardSquares:
    """The sum of squares of all gradients, some of which are sharded.

    ``groups``: all axes of a stage's parameters, in the same order on all of their processes; the
    widest form a grid. ``axes``: the axes over which a parameter is sharded, by its id; missing if
    none. All processes call it and get the same bits.
    """

    def __init__(
        self,
        context: RankContext,
        groups: Mapping[Processes, dist.ProcessGroup],
        axes: Mapping[int, Axes],
    ) -> None:
        self._context, self._groups = context, [groups[axis] for axis in widest([*groups])]
        self._shards = {key: prod(map(len, over)) for key, over in axes.items()}

    def __call__(self, parameters: Sequence[nn.Parameter]) -> float:
        by_shards: dict[int, list[nn.Parameter]] = {}
        for parameter in parameters:
            by_shards.setdefault(self._shards.get(id(parameter), 1), []).append(parameter)
        processes = prod(group.size() for group in self._groups)
        found = sum(squares_of(own) * n / processes for n, own in by_shards.items())
        for group in self._groups:
            found = summed(self._context, found, group, "the norm over the shards")
        return found


@torch.no_grad()
def squares_of(parameters: Sequence[nn.Parameter]) -> float:
    """Returns the sum of squares of the parameters' gradients; of DTensors, only the local part.

    Waits once for the device.
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

    The host waits. Raises ConnectionError, which names ``what``, after the timeout on a CPU or if a
    replica has a fault.
    """
    total = torch.tensor(value, dtype=torch.float64, device=context.device)
    wait(context, dist.all_reduce(total, group=group, async_op=True), what)
    return float(total)


def wait(context: RankContext, work: dist.Work | None, what: str) -> None:
    """Waits for a collective over replicas or shards; on a CPU, with the timeout of the options."""
    assert work is not None
    on_host, seconds = context.device.type == "cpu", context.options.timeout
    timeout = timedelta(seconds=seconds) if on_host else None
    wait_for(work, timeout, what, context.transport.faults)
