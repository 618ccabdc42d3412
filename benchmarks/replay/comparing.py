"""Answers compared with those recorded: what is worse than the rules of a replay allow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

MEDIAN, BEST, BOUND = 5e-3, 1e-2, 1e-6
"""Relative: by how much the median cost of the seeds and the best of them may be above those
recorded, and a bound below."""
STATUSES = ("optimal", "feasible", "infeasible", "refused", "invalid", "crash")
"""The better first."""

Answer = Mapping[str, Any]


def worse(before: Answer, now: Answer) -> Iterator[str]:
    """Each fault of an answer compared with the one recorded."""
    if before["profile"] != now["profile"]:
        yield "another profile than the one recorded"
    if "status" not in before:
        if before["order"] != now["order"]:
            yield f"order: {before['order']} before, {now['order']} now"
        return
    old, new = majority(before["status"]), majority(now["status"])
    if STATUSES.index(new) > STATUSES.index(old):
        yield f"{old} before, {new} now ({', '.join(now['status'])})"
    if before.get("smallest") != now.get("smallest"):
        yield f"smallest limit: {before.get('smallest')} before, {now.get('smallest')} now"
    yield from _costs(_known(before, "cost"), _known(now, "cost"))
    yield from _bounds(before, now)


def _costs(before: Sequence[float], now: Sequence[float]) -> Iterator[str]:
    if not before or not now:
        if before:
            yield "no schedule now"
        return
    for word, figure, most in (("median", median, MEDIAN), ("best", min, BEST)):
        old, new = float(figure(before)), float(figure(now))
        if new > old * (1 + most):
            yield f"{word} cost: {old:.10g} before, {new:.10g} now ({new / old - 1:+.2%})"


def _bounds(before: Answer, now: Answer) -> Iterator[str]:
    """A bound that is listed no more is held against the best that is."""
    listed: dict[str, float] = now.get("bounds", {})
    best = max(listed.values(), default=0.0)
    for name, value in before.get("bounds", {}).items():
        if listed.get(name, best) < value * (1 - BOUND):
            yield f"bound {name}: {value} before, {listed.get(name, best)} now"
    old, new = _known(before, "proven"), _known(now, "proven")
    if old and new and max(new) < max(old) * (1 - BOUND):
        yield f"proven bound: {max(old)} before, {max(new)} now ({max(new) / max(old) - 1:+.2%})"


def majority(statuses: Sequence[str]) -> str:
    """The status of most seeds; the worse one where two are as frequent."""
    counts = Counter(statuses)
    return max(counts, key=lambda each: (counts[each], STATUSES.index(each)))


def _known(answer: Answer, key: str) -> list[float]:
    return [value for value in answer.get(key, ()) if value is not None]
