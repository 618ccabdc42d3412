"""A layer's times on one rank, from its kernels and collectives.

Overlap of messages with computation, apart from the averaging of gradients (:mod:`.step_end`):

* Messages of tensor and expert parallelism are exposed: the next kernel waits for them.
* Context parallel messages in a ring (sends) overlap with the attention of the same op, except
  in its last round.

The time of a kernel on a GPU is a roofline with a share of the peaks:

* A matrix product reaches the share ``gemm`` of the peak. A short inner dimension k reduces this by
  k / (k + ``gemm_depth``), and a small result leaves multiprocessors idle: it is distributed in
  tiles of 128 x 128 (NVIDIA, "Matrix multiplication background", 2023).
* Fused attention reaches the share ``attention`` of the peak; a multiprocessor takes 128 queries of
  a head at a time (Dao, 2023, section 3.2). In a ring, each round is a separate kernel.
* All else, and products with a short inner dimension, are limited by the share ``memory`` of the
  bandwidth.
* No kernel takes less than the launch time on the host, ``kernel_ms``.

The time of a collective is latency plus size over bandwidth, by the ranks that take part. Ranks are
laid out as in Megatron: tensor parallel ones adjacent, then context parallel, data parallel, and
stages outermost; experts are distributed over the first three. A ring over several nodes leaves
each node once for each of its members there, so that their network links add up (NCCL's rings). A
ring takes ``size`` - 1 steps, twice that for an all-reduce, for which NCCL uses a tree if it is
shorter; an all-to-all sends everything at once.
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
    """Times of collectives of ``run`` on ``cluster``, in milliseconds."""

    cluster: Cluster
    run: TrainingRun

    def of(self, collective: Collective) -> float:
        """The time of one collective, or of the ``count`` messages of a send, without
        contention."""
        link = self.link(collective.group, collective.size)
        latency = collective.steps * link.latency
        least = collective.count * self.cluster.efficiency.collective_ms
        return least + latency + self.moving(collective)

    def moving(self, collective: Collective) -> float:
        """The time of one of many collectives, whose latencies overlap."""
        link = self.link(collective.group, collective.size)
        reached = self.cluster.efficiency
        return collective.wire_bytes / (link.gigabytes_per_second * reached.link * 1e6)

    def link(self, group: Group, size: int) -> Link | ClusterLink:
        """The link from a rank to the other ranks of its group."""
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
    """Times of kernels on a GPU of ``cluster``, in milliseconds."""

    cluster: Cluster
    precision: Precision = Precision.BF16
    """The run's precision. Attention, and all else that is not computed in a narrow format, uses
    its wide format."""

    @property
    def peak(self) -> float:
        """The published dense peak for the run's precision, in TFLOP/s."""
        return self.cluster.gpu.peak(self.precision.units)

    def of(self, kernel: Kernel) -> float:
        """The time of one kernel, or of the several passes that it represents."""
        if isinstance(kernel, Gemm):
            return self._gemm(kernel)
        if isinstance(kernel, Attention):
            return self._attention(kernel)
        assert isinstance(kernel, Elementwise)
        return kernel.kernels * self.at_least(self.moving(kernel.bytes / kernel.kernels))

    def moving(self, size: float) -> float:
        """The time to read or write this number of bytes of device memory."""
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
        """FLOPs per millisecond that a large product reaches."""
        reached = self.cluster.efficiency
        share = reached.gemm_narrow if precision.is_narrow else reached.gemm
        return self.cluster.gpu.peak(precision.units) * share * 1e9

    def _filled(self, gemm: Gemm) -> float:
        """The share of multiprocessors that have a tile. Partial last waves are not modelled:
        without them, predictions are closer to published times."""
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
"""The module whose kernels overlap with the ring exchange of keys and values."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Times of messages, in milliseconds: of all, and of the exposed part."""

    total: float = 0.0
    exposed: float = 0.0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.total + other.total, self.exposed + other.exposed)

    def times(self, count: float) -> Traffic:
        return Traffic(self.total * count, self.exposed * count)


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Times of a layer for one microbatch by op, in milliseconds: of kernels, and of messages by
    group."""

    kernels: Mapping[OpKind, float]
    traffic: Mapping[OpKind, Mapping[Group, Traffic]]

    def of(self, op: OpKind) -> float:
        """The time from the op's start to its end."""
        return self.kernels[op] + sum(each.exposed for each in self.traffic[op].values())


def layer_times(
    work: LayerWork, kernels: KernelTimes, messages: CollectiveTimes, factor: float = 1.0
) -> LayerTimes:
    """The times of ``work``; ``factor``: ratio of measured to calculated time of such a layer."""
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
