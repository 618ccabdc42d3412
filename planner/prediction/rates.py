"""Times of kernels, messages and layers on one rank, from a cluster's peaks and the rates that it
reaches.

The time of a kernel on a GPU follows a roofline model, with a share of the peaks:

* A matrix product reaches the share ``gemm`` of the peak. A short inner dimension k reduces this by
  the factor k / (k + ``gemm_depth``), and a small result leaves multiprocessors idle: it is
  distributed in tiles of 128 x 128 (NVIDIA, "Matrix multiplication background", 2023).
* Fused attention reaches the share ``attention`` of the peak; a multiprocessor takes 128 queries of
  a head at a time (Dao, 2023, section 3.2). In a ring, each round is a separate kernel.
* All other kernels, and products with a short inner dimension, are limited by the share ``memory``
  of the memory bandwidth.
* No kernel takes less than the launch time on the host, ``kernel_ms``.

The time of a collective is latency plus size over bandwidth. Ranks are numbered as in Megatron:
tensor parallel ranks are adjacent, and their groups form context parallel groups, then data
parallel groups, and finally pipelines; experts are distributed over the ranks of a pipeline stage.
For a group with k members on each of several nodes, NCCL builds rings that together use the network
links of all k members, so that their bandwidths add up. A ring takes ``size`` - 1 steps, and twice
as many for an all-reduce, for which NCCL uses a tree if that takes fewer steps; an all-to-all takes
a single step.

Messages of tensor and expert parallelism are exposed: the next kernel waits for them. Context
parallel messages in a ring (sends) overlap with the attention of the same op, except in the last
round. Averaging of gradients is part of the end of a step (:mod:`.step`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from pipeloom.ir.model.links import Link
from pipeloom.ir.model.ops import OpKind

from ..clusters.cluster import Cluster, ClusterLink
from ..models.work import Attention, Collective, Elementwise, Gemm, Group, Kernel, LayerWork

OPS = (OpKind.F, OpKind.R, OpKind.B, OpKind.W)
TILE = 128


class Traffic(NamedTuple):
    """Time of messages, in milliseconds: in total, and of the exposed part, which does not overlap
    with computation."""

    total: float = 0.0
    exposed: float = 0.0

    def plus(self, other: Traffic, times: float = 1.0) -> Traffic:
        """Return the sum of this traffic and ``times`` times ``other``."""
        return Traffic(self.total + times * other.total, self.exposed + times * other.exposed)


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Times of a layer for one microbatch, in milliseconds.

    ``kernels``: time of the kernels of each op. ``exposed``: time of the exposed messages of each
    op. ``traffic``: time of the messages in each group of ranks, over all ops.
    """

    kernels: Mapping[OpKind, float]
    exposed: Mapping[OpKind, float]
    traffic: Mapping[Group, Traffic]

    def of(self, op: OpKind) -> float:
        """Return the time from the op's start to its end."""
        return self.kernels[op] + self.exposed[op]


@dataclass(frozen=True, eq=False)
class Rates:
    """Times of kernels, messages and layers on ``cluster``, in milliseconds."""

    cluster: Cluster
    _known: dict[tuple[int, float], LayerTimes] = field(default_factory=dict)

    def layer(self, work: LayerWork, factor: float) -> LayerTimes:
        """Return the times of a layer, which are cached by the identity of the object ``work``.

        ``factor``: the ratio of measured to calculated time, by which all times of the layer are
        multiplied.
        """
        key = id(work), factor
        if key not in self._known:
            self._known[key] = self._layer(work, factor)
        return self._known[key]

    def _layer(self, work: LayerWork, factor: float) -> LayerTimes:
        times, attention, exposed = (dict.fromkeys(OPS, 0.0) for _ in range(3))
        traffic: dict[Group, Traffic] = {}
        for kernel in sorted(work.kernels, key=lambda kernel: isinstance(kernel, Collective)):
            time, op = factor * self.of(kernel), kernel.op
            if isinstance(kernel, Collective):
                hidden = attention[op] * (1 - 1 / kernel.size) * (kernel.group is Group.CP)
                sent, group = Traffic(time, time - min(time, hidden)), kernel.group
                exposed[op] += sent.exposed
                traffic[group] = traffic.get(group, Traffic()).plus(sent)
            else:
                times[op] += time
                attention[op] += time * isinstance(kernel, Attention)
        return LayerTimes(times, exposed, traffic)

    def of(self, kernel: Kernel) -> float:
        """Return the time of a kernel, or of all kernels if the object stands for several. For a
        collective, it is the time if no other messages use the same links."""
        reached = self.cluster.efficiency
        if isinstance(kernel, Collective):
            latency = kernel.steps * self.link(kernel.apart, kernel.size).latency
            return kernel.count * reached.collective_ms + latency + self.sending(kernel)
        if isinstance(kernel, Gemm):
            return max(self._gemm(kernel), self.moving(kernel.bytes), reached.kernel_ms)
        if isinstance(kernel, Attention):
            time = max(self._attention(kernel), self.moving(kernel.bytes))
            return kernel.rounds * max(time / kernel.rounds, reached.kernel_ms)
        assert isinstance(kernel, Elementwise)
        return kernel.kernels * max(self.moving(kernel.bytes / kernel.kernels), reached.kernel_ms)

    def moving(self, size: float) -> float:
        """Return the time to read or write ``size`` bytes of device memory."""
        return size / (self.cluster.gpu.gigabytes_per_second * self.cluster.efficiency.memory * 1e6)

    def sending(self, collective: Collective) -> float:
        """Return the time of a collective without its latency, as for one of many collectives whose
        latencies overlap."""
        link = self.link(collective.apart, collective.size)
        reached = self.cluster.efficiency.link
        return collective.wire_bytes / (link.gigabytes_per_second * reached * 1e6)

    def link(self, apart: int, size: int) -> Link | ClusterLink:
        """Return the link from a rank to the other ranks of its group. The group has ``size``
        ranks, whose numbers increase in steps of ``apart``. If it spans several nodes, the link has
        the bandwidths of all members on a node together."""
        node, inside, between = (
            self.cluster.gpus_per_node,
            self.cluster.inside,
            self.cluster.between,
        )
        if apart * size <= node:
            return inside
        members = max(1, min(size, node // apart))
        rate = min(members * between.gigabytes_per_second, inside.gigabytes_per_second)
        return Link(between.latency, max(rate, between.gigabytes_per_second))

    def reached(self, link: Link | ClusterLink) -> Link:
        """Return the link with the bandwidth that messages reach, and with the minimum time of a
        message added to its latency."""
        rates = self.cluster.efficiency
        return Link(link.latency + rates.collective_ms, link.gigabytes_per_second * rates.link)

    def _gemm(self, gemm: Gemm) -> float:
        """Return the time of a matrix product if it is limited by its FLOPs, not by memory
        bandwidth or launch.

        The rate is the share ``gemm`` or ``gemm_narrow`` of the peak, reduced for a short inner
        dimension and for a result with fewer tiles than the GPU has multiprocessors. A partly
        filled last wave of tiles does not reduce it: predictions are then closer to published
        times.
        """
        gpu, reached = self.cluster.gpu, self.cluster.efficiency
        share = reached.gemm_narrow if gemm.precision.is_narrow else reached.gemm
        filled = min(1.0, gemm.m * gemm.n * gemm.count / TILE**2 / gpu.multiprocessors)
        full = gemm.k / (gemm.k + reached.gemm_depth) * filled
        return gemm.flops / (gpu.peak(gemm.precision.units) * share * 1e9 * full)

    def _attention(self, kernel: Attention) -> float:
        gpu, reached = self.cluster.gpu, self.cluster.efficiency
        filled = min(1.0, kernel.rows / TILE / gpu.multiprocessors)
        share = reached.attention * filled
        if kernel.op is OpKind.B:
            share *= reached.attention_backward
        if kernel.rounds > 1:
            share *= reached.attention_ring
        return kernel.flops / (gpu.peak(kernel.precision.units) * share * 1e9)
