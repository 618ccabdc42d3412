"""The sum of the squares of gradients of which some are shards, over all processes that have any.

A parameter is a shard over some *axes*, process groups of its mesh or of ``norm_groups``. Along all
other axes of its stage each process has a copy of it, so its squares are divided by their number::

    mesh (dp, tp), 2 x 2      weight: shards over dp and tp     norm: shards over dp
    squares of a process      weight's + norm's / 2     ── over dp ──  ── over tp ──▶  one number
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from math import prod
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch import nn

from ..dtensors import is_dtensor, local
from ..rank.context import RankContext
from ..transport import wait_for

Processes: TypeAlias = tuple[int, ...]
Axes: TypeAlias = frozenset[Processes]
Squares: TypeAlias = Callable[[Sequence[nn.Parameter]], float]


def processes_of(group: dist.ProcessGroup | None) -> Processes:
    """The numbers of its processes among all."""
    return tuple(dist.get_process_group_ranks(group))


def mesh_axes(parameter: nn.Parameter) -> dict[Processes, tuple[dist.ProcessGroup, bool]]:
    """The axes of a DTensor's mesh with more than one process, and whether it is a shard over each;
    none of another parameter."""
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
    """The axes over which a DTensor is shards."""
    return frozenset(axis for axis, (_, shards) in mesh_axes(parameter).items() if shards)


def widest(axes: Sequence[Processes]) -> list[Processes]:
    """The maximal ones of ``axes``: a sum over these covers the processes of all axes."""
    return [axis for axis in axes if not any({*axis} < {*other} for other in axes)]


class ShardSquares:
    """The sum of the squares of all gradients, of which some are shards.

    ``groups``: all axes of a stage's parameters, in the same order on all of their processes, of
    which the widest make up a grid; ``axes``: by a parameter's id those over which it is a shard,
    none where it is not named. All processes call it, and get the same bits.
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
    """The sum of squares of the parameters' gradients, of DTensors over the part that is here; one
    wait for the device."""
    gradients = [local(p.grad) for p in parameters if p.grad is not None]
    if not gradients:
        return 0.0
    wide = [torch.float32 if g.dtype.itemsize < 4 else g.dtype for g in gradients]
    pairs = zip(gradients, wide, strict=True)
    norms = [torch.linalg.vector_norm(g, dtype=dtype).double() for g, dtype in pairs]
    return float(torch.stack(norms).square().sum())


def summed(context: RankContext, value: float, group: dist.ProcessGroup, what: str) -> float:
    """The sum of the values of all processes of ``group``, the same bits on all; the host waits.

    Raises ConnectionError where that takes longer on a CPU, saying of ``what``,
    or a fault is found.
    """
    total = torch.tensor(value, dtype=torch.float64, device=context.device)
    wait(context, dist.all_reduce(total, group=group, async_op=True), what)
    return float(total)


def wait(context: RankContext, work: dist.Work | None, what: str) -> None:
    """Waits for a collective over replicas or shards, on a CPU as long as the options say."""
    assert work is not None
    on_host, seconds = context.device.type == "cpu", context.options.timeout
    timeout = timedelta(seconds=seconds) if on_host else None
    wait_for(work, timeout, what, context.transport.replicas)
