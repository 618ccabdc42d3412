"""Why configurations lose: where their steps go."""

from __future__ import annotations

from ..prediction.step import StepTimes


def parts_of(step: StepTimes) -> dict[str, float]:
    """Milliseconds of a step by what they go to; they sum up to it.

    ``compute``: kernels of the busiest rank, what is computed again included; ``tp``, ``cp``,
    ``ep``, ``etp``: messages that it waits for; ``bubble``: what it idles before the last op of
    all ranks ends and gradients that are passed are home, messages between stages included; ``dp``:
    exposed averaging of gradients; ``step``: the optimizer and what is beside kernels.
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
