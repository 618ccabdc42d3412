"""A layer's times on one rank, from its kernels and collectives.

What computation hides of messages, beside the averaging of gradients (:mod:`.step_end`):

* tensor and expert parallel ones nothing: the next kernel waits for them;
* context parallel ones that go round a ring (sends) as long as the attention of the same op takes,
  but for its last round.

How long a kernel takes on a GPU: a roofline whose peaks real kernels reach in part.

* A product takes its FLOPs at ``gemm`` of the peak, less what a short inner dimension k costs,
  k / (k + ``gemm_depth``), and what a small result leaves idle: it is dealt to the
  multiprocessors in tiles of 128 x 128 (NVIDIA, "Matrix multiplication background", 2023).
* Fused attention takes its FLOPs at ``attention`` of the peak; a multiprocessor takes 128 queries
  of a head at a time (Dao, 2023, section 3.2). In a ring each round is a kernel of its own.
* All else, and products that are too shallow, wait for ``memory`` of the bandwidth.
* No kernel takes less than the host needs to launch one, ``kernel_ms``.

How long a collective takes: latency and bandwidth, by the ranks that take part.

Ranks are laid out as Megatron lays them: tensor parallel ones next to each other, then context
parallel ones, data parallel ones, and stages outermost; experts are spread over the first three. A
ring among ranks of several nodes leaves each node once for each of its members there, so that
their links to the network add up (NCCL's rings). A ring takes ``size`` - 1 steps, twice for an
all-reduce, which NCCL does in a tree where that is shorter; an all-to-all sends all at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from pipeloom.ir.model.links import Link
from pipeloom.ir.model.ops import OpKind

from ..clusters.cluster import Cluster, ClusterLink
from ..models.precision import Precision
from ..models.run import TrainingRun
from ..models.work import Attention, Collective, Elementwise, Gemm, Group, Kernel, LayerWork


@dataclass(frozen=True)
class CollectiveTimes:
    """Milliseconds of collectives of ``run`` on ``cluster``."""

    cluster: Cluster
    run: TrainingRun

    def of(self, collective: Collective) -> float:
        """Time of one, or of the ``count`` messages of a send, alone on the links."""
        link = self.link(collective.group, collective.size)
        latency = collective.steps * link.latency
        least = collective.count * self.cluster.efficiency.collective_ms
        return least + latency + self.moving(collective)

    def moving(self, collective: Collective) -> float:
        """Time of one among many, whose latencies hide behind each other."""
        link = self.link(collective.group, collective.size)
        reached = self.cluster.efficiency
        return collective.wire_bytes / (link.gigabytes_per_second * reached.link * 1e6)

    def link(self, group: Group, size: int) -> Link | ClusterLink:
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
        apart = {Group.CP: run.tp, Group.DP: run.tp, Group.EP: run.etp}
        return (apart | {Group.EDP: run.etp * run.ep}).get(group, 1)


TILE = 128


@dataclass(frozen=True)
class KernelTimes:
    """Milliseconds of kernels on a GPU of ``cluster``."""

    cluster: Cluster
    precision: Precision = Precision.BF16
    """The run's: attention and what is not narrow compute in its wide format."""

    @property
    def peak(self) -> float:
        """Dense teraflops that the GPU's maker publishes for the run's precision."""
        return self.cluster.gpu.peak(self.precision.units)

    def of(self, kernel: Kernel) -> float:
        """Time of one kernel, or of the passes that one stands for."""
        if isinstance(kernel, Gemm):
            return self._gemm(kernel)
        if isinstance(kernel, Attention):
            return self._attention(kernel)
        assert isinstance(kernel, Elementwise)
        return kernel.kernels * self.at_least(self.moving(kernel.bytes / kernel.kernels))

    def moving(self, size: float) -> float:
        """To read or write so many bytes of the device's memory."""
        gpu, reached = self.cluster.gpu, self.cluster.efficiency
        return size / (gpu.gigabytes_per_second * reached.memory * 1e6)

    def at_least(self, time: float) -> float:
        return max(time, self.cluster.efficiency.kernel_ms)

    def _gemm(self, gemm: Gemm) -> float:
        reached = self.cluster.efficiency
        full = gemm.k / (gemm.k + reached.gemm_depth) * self._filled(gemm)
        time = gemm.flops / (self._rate(gemm.precision) * full)
        return self.at_least(max(time, self.moving(gemm.bytes)))

    def _rate(self, precision: Precision) -> float:
        """FLOPs a millisecond that a large product reaches."""
        reached = self.cluster.efficiency
        share = reached.gemm_narrow if precision.is_narrow else reached.gemm
        return self.cluster.gpu.peak(precision.units) * share * 1e9

    def _filled(self, gemm: Gemm) -> float:
        """Share of the multiprocessors that have a tile. Beyond one tile each, last waves that are
        not full are not counted: without them published times are met better."""
        tiles = gemm.m * gemm.n * gemm.count / TILE**2
        return min(1.0, tiles / self.cluster.gpu.multiprocessors)

    def _attention(self, kernel: Attention) -> float:
        reached = self.cluster.efficiency
        rows = kernel.sequences * kernel.heads * kernel.queries
        share = reached.attention * min(1.0, rows / TILE / self.cluster.gpu.multiprocessors)
        if kernel.op is OpKind.B:
            share *= reached.attention_backward
        if kernel.rounds > 1:
            share *= reached.attention_ring
        rate = self.cluster.gpu.peak(self.precision.wide.units) * share * 1e9
        time = max(kernel.flops / rate, self.moving(kernel.bytes))
        return kernel.rounds * self.at_least(time / kernel.rounds)


OPS = (OpKind.F, OpKind.R, OpKind.B, OpKind.W)
SCORES = "core_attn"
"""Module of the kernels that a ring of keys and values hides behind."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Milliseconds of messages: all of them, and those that nothing hides."""

    total: float = 0.0
    exposed: float = 0.0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.total + other.total, self.exposed + other.exposed)

    def times(self, count: float) -> Traffic:
        return Traffic(self.total * count, self.exposed * count)


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Milliseconds of a layer for one microbatch, by op: kernels alone, and messages by group."""

    kernels: Mapping[OpKind, float]
    traffic: Mapping[OpKind, Mapping[Group, Traffic]]

    def of(self, op: OpKind) -> float:
        """From the op's start to its end."""
        return self.kernels[op] + sum(each.exposed for each in self.traffic[op].values())


def layer_times(
    work: LayerWork, kernels: KernelTimes, messages: CollectiveTimes, factor: float = 1.0
) -> LayerTimes:
    """The times of ``work``; ``factor``: measured over calculated time of such a layer."""
    computed, traffic = {}, {}
    for op in OPS:
        compute = [kernel for kernel in work.of(op) if not isinstance(kernel, Collective)]
        computed[op] = factor * sum(map(kernels.of, compute))
        hiding = factor * sum(kernels.of(k) for k in compute if _is_attention(k))
        sent = [kernel for kernel in work.of(op) if isinstance(kernel, Collective)]
        traffic[op] = _traffic(sent, messages, factor, hiding)
    return LayerTimes(computed, traffic)


def _is_attention(kernel: object) -> bool:
    return isinstance(kernel, Attention) or (isinstance(kernel, Gemm) and kernel.module == SCORES)


def _traffic(
    sent: list[Collective], messages: CollectiveTimes, factor: float, hiding: float
) -> dict[Group, Traffic]:
    found: dict[Group, Traffic] = defaultdict(Traffic)
    for each in sent:
        time = factor * messages.of(each)
        hidden = min(time, hiding * (1 - 1 / each.size)) if each.group is Group.CP else 0.0
        found[each.group] += Traffic(time, time - hidden)
    return dict(found)
