"""A layer's times on one rank, from its kernels and collectives.

What computation hides of messages, beside the averaging of gradients (:mod:`.step_end`):

* tensor and expert parallel ones nothing: the next kernel waits for them;
* context parallel ones that go round a ring (sends) as long as the attention of the same op takes,
  but for its last round.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from pipeloom.ir.model.ops import OpKind

from ..models.work import Attention, Collective, CollectiveKind, Gemm, Group, LayerWork
from .collective_times import CollectiveTimes
from .kernel_times import KernelTimes

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
        mine = list(work.of(op))
        compute = [kernel for kernel in mine if not isinstance(kernel, Collective)]
        computed[op] = factor * kernels.total(compute)
        hiding = factor * kernels.total(k for k in compute if _is_attention(k))
        sent = [kernel for kernel in mine if isinstance(kernel, Collective)]
        traffic[op] = _traffic(sent, messages, factor, hiding)
    return LayerTimes(computed, traffic)


def _is_attention(kernel: object) -> bool:
    return isinstance(kernel, Attention) or (isinstance(kernel, Gemm) and kernel.module == SCORES)


def _traffic(
    sent: list[Collective], messages: CollectiveTimes, factor: float, hiding: float
) -> dict[Group, Traffic]:
    found: dict[Group, Traffic] = defaultdict(Traffic)
    for each in sent:
        time, hidden = factor * messages.of(each), 0.0
        if each.group is Group.CP and each.kind is CollectiveKind.SEND:
            hidden = min(time, hiding * (1 - 1 / each.size))
        found[each.group] += Traffic(time, time - hidden)
    return dict(found)
