"""The sum of the squares of gradients of which some are shards, over all processes that have any.

A parameter is a shard over some *axes*, process groups of its mesh or of ``norm_groups``, and along
all other axes of its stage the processes have copies of it, which count once::

    mesh (dp, tp)     weight: shards over dp and tp     norm: shards over dp     bias: copies

    sums of squares   [both, dp, neither]  ── over dp ──  ── over tp ──▶  one number
    added up                  both, dp         both
    the first one's                            dp, neither
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch import nn

from ..dtensors import is_dtensor
from ..stages.gradient_squares import squares_of, summed
from ..transport import ReplicaFaults

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


class ShardSquares:
    """The sum of the squares of all gradients, of which some are shards.

    ``groups``: all axes of a stage's parameters, in the same order on all of their processes;
    ``axes``: by a parameter's id those over which it is a shard, none where it is not named. All
    processes call it, ``seconds`` long at most on a CPU, and get the same bits.
    """

    def __init__(
        self,
        groups: Sequence[dist.ProcessGroup],
        axes: Mapping[int, Axes],
        device: torch.device,
        seconds: float,
        faults: ReplicaFaults | None = None,
    ) -> None:
        self._groups, self._device, self._faults = groups, device, faults
        self._timeout = timedelta(seconds=seconds)
        order = list(map(processes_of, groups))
        self._kinds = {  # bit i: a shard over the i-th axis
            key: sum(1 << i for i, axis in enumerate(order) if axis in over)
            for key, over in axes.items()
        }

    def __call__(self, parameters: Sequence[nn.Parameter]) -> float:
        kinds: dict[int, list[nn.Parameter]] = {}
        for parameter in parameters:
            kinds.setdefault(self._kinds.get(id(parameter), 0), []).append(parameter)
        count = 1 << len(self._groups)  # the same on all, also where some have no such parameter
        sums = [squares_of(kinds.get(kind, ())) for kind in range(count)]
        for i, group in enumerate(self._groups):
            adds = [bool(kind >> i & 1) for kind in range(count)]
            found = self._sum(sums, group, adds)
            # before the last one what is no shard over this axis is left as it is: axes may overlap
            kept = [i + 1 < len(self._groups) and not add for add in adds]
            sums = [own if keep else x for own, x, keep in zip(sums, found, kept, strict=True)]
        total = [sum(sums)]
        for group in self._groups[:-1]:  # the last group's processes are alike by now
            total = self._sum(total, group, [False])
        return total[0]

    def _sum(
        self, sums: Sequence[float], group: dist.ProcessGroup, adds: Sequence[bool]
    ) -> list[float]:
        """Sums over the group: shards' squares are added up, of all others the first process's
        count."""
        first = group.rank() == 0
        # times 0, so that one that is not finite is not lost
        mine = [x if first or add else 0.0 * x for x, add in zip(sums, adds, strict=True)]
        what = "the norm over the shards"
        return summed(mine, group, self._device, self._timeout, what, faults=self._faults)
