"""Why configurations lose: the parts of their step times."""

from __future__ import annotations

from ..prediction.step import StepTimes


def parts_of(step: StepTimes) -> dict[str, float]:
    """The parts of a step time, in milliseconds; they sum to it.

    ``compute``: kernels of the busiest rank, including recomputation; ``tp``, ``cp``, ``ep``,
    ``etp``: its exposed messages; ``bubble``: its idle time until all ranks' ops have ended and
    passed gradients have arrived, including messages between stages; ``dp``: exposed averaging of
    gradients; ``step``: the optimizer and the host's fixed overhead.
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
    """The part that exceeds the best plan's by the most, in words."""
    more = {key: parts.get(key, 0.0) - best.get(key, 0.0) for key in {*parts, *best}}
    key = max(sorted(more), key=lambda each: more[each])
    others = sum(more.values()) - more[key]
    words = f"{key} {more[key]:+.0f} ms"
    return words if abs(others) < 0.5 else f"{words}, all else {others:+.0f} ms"
