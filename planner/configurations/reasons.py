"""Why configurations lose: where their steps go, and what other rates would change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from typing import Any

from pipeloom.ir.model.links import Link

from ..clusters.cluster import Cluster
from ..clusters.efficiency import BOUNDS
from ..models.model import Model
from ..prediction.step import StepTimes
from .evaluation import Evaluated, planned_step

OFF = 0.1
"""By how much rates may be wrong."""
RATES = ("gemm", "memory", "inside", "between")
RATE_WORDS = {
    "gemm": "matrix multiplications",
    "memory": "memory bandwidth",
    "inside": "links inside nodes",
    "between": "links between nodes",
    "host": "links to the host",
}
"""What rates are called in words; that of memory is its bandwidth."""


def parts_of(step: StepTimes) -> dict[str, float]:
    """Milliseconds of a step by what they go to; they sum up to it.

    ``compute``: kernels of the busiest rank, what is computed again included; ``tp``, ``cp``,
    ``ep``, ``etp``: messages that it waits for; ``bubble``: what it idles before the last op of
    all ranks ends and gradients that are passed are home, messages between stages included; ``dp``:
    averaging that nothing hides; ``step``: the optimizer and what is beside kernels.
    """
    busiest = float((step.work + step.again).max())
    exposed = {kind: each.exposed for kind, each in step.communication().items()}
    inner = {kind: exposed[kind] for kind in ("tp", "cp", "ep", "etp") if exposed.get(kind)}
    makespan = float(step.makespan)
    return {
        "compute": busiest - sum(inner.values()),
        **inner,
        "bubble": makespan - busiest,
        "dp": step.time - step.stepping - makespan,
        "step": step.stepping,
    }


def reason(parts: dict[str, float], best: dict[str, float]) -> str:
    """The part that grows most against the best plan."""
    more = {key: parts.get(key, 0.0) - best.get(key, 0.0) for key in {*parts, *best}}
    key = max(sorted(more), key=lambda each: more[each])
    others = sum(more.values()) - more[key]
    words = f"{key} {more[key]:+.0f} ms"
    return words if abs(others) < 0.5 else f"{words}, all else {others:+.0f} ms"


@dataclass(frozen=True, slots=True)
class OtherRate:
    """The best of the plans that were simulated, where a rate is ``factor`` of what is assumed.

    ``best``: its name, ``step_ms`` its step; ``lost``: by how much the plan chosen is slower, as a
    share of that.
    """

    rate: str
    factor: float
    best: str
    step_ms: float
    lost: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def other_rates(model: Model, cluster: Cluster, found: Sequence[Evaluated]) -> Iterator[OtherRate]:
    """The best of some plans, the chosen one first, at each rate :data:`OFF` lower and higher."""
    rates = (*RATES, *(["host"] if any(each.configuration.offload for each in found) else []))
    for rate in rates:
        for factor in (1 - OFF, 1 + OFF):
            changed = _with_rate(cluster, rate, factor)
            times = [planned_step(model, changed, each).time for each in found]
            best = min(range(len(times)), key=times.__getitem__)
            lost = times[0] / times[best] - 1
            yield OtherRate(rate, factor, found[best].configuration.name, times[best], lost)


def _with_rate(cluster: Cluster, rate: str, factor: float) -> Cluster:
    link = getattr(cluster, rate, None)
    if isinstance(link, Link):
        faster: dict[str, Any] = {rate: _faster(link, factor)}
        return replace(cluster, **faster)
    reached = cluster.efficiency
    value = min(getattr(reached, rate) * factor, BOUNDS.get(rate, inf))
    return replace(cluster, efficiency=replace(reached, **{rate: value}))


def _faster(link: Link, factor: float) -> Link:
    return Link(link.latency, link.gigabytes_per_second * factor)
