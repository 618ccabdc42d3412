"""How long a collective takes: latency and bandwidth, by the ranks that take part.

Ranks are laid out as Megatron lays them: tensor parallel ones next to each other, then context
parallel ones, data parallel ones, and stages outermost; experts are spread over the first three. A
ring among ranks of several nodes leaves each node once for each of its members there, so that
their links to the network add up (NCCL's rings). A ring takes ``size`` - 1 steps, twice for an
all-reduce, which NCCL does in a tree where that is shorter; an all-to-all sends all at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2

from pipeloom.ir.model.links import Link

from ..clusters.cluster import Cluster
from ..models.run import TrainingRun
from ..models.work import Collective, CollectiveKind, Group


@dataclass(frozen=True)
class CollectiveTimes:
    """Milliseconds of collectives of ``run`` on ``cluster``."""

    cluster: Cluster
    run: TrainingRun

    def of(self, collective: Collective) -> float:
        """Time of one, or of the ``count`` messages of a send, alone on the links."""
        if collective.size <= 1:
            return 0.0
        link = self.link(collective.group, collective.size)
        latency = self._steps(collective) * link.latency
        least = collective.count * self.cluster.efficiency.collective_ms
        return least + latency + self.moving(collective)

    def moving(self, collective: Collective) -> float:
        """Time of one among many, whose latencies hide behind each other."""
        link = self.link(collective.group, collective.size)
        reached = self.cluster.efficiency
        return collective.wire_bytes / (link.gigabytes_per_second * reached.link * 1e6)

    def link(self, group: Group, size: int) -> Link:
        """The link that a rank of a group has towards the others of it."""
        apart, node = self._apart(group), self.cluster.gpus_per_node
        if apart * size <= node:
            return self.cluster.inside
        members = max(1, min(size, node // apart))
        between, inside = self.cluster.between, self.cluster.inside
        rate = min(members * between.gigabytes_per_second, inside.gigabytes_per_second)
        return Link(between.latency, max(rate, between.gigabytes_per_second))

    def _apart(self, group: Group) -> int:
        run = self.run
        return {
            Group.TP: 1,
            Group.ETP: 1,
            Group.CP: run.tp,
            Group.EP: run.etp,
            Group.DP: run.tp,
            Group.EDP: run.etp * run.ep,
            Group.PP: run.tp * run.cp * run.dp,
        }[group]

    @staticmethod
    def _steps(collective: Collective) -> int:
        """Latencies one after the other."""
        others = collective.size - 1
        if collective.kind is CollectiveKind.ALL_REDUCE:
            return 2 * min(others, ceil(log2(collective.size)))
        if collective.kind in {CollectiveKind.ALL_TO_ALL, CollectiveKind.SEND}:
            return collective.count
        return others
