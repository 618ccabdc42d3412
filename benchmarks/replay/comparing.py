"""Compares results with the recorded ones, and reports what is worse than the tolerances allow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

MEDIAN, BEST, BOUND = 5e-3, 1e-2, 1e-6
"""Relative tolerances: for an increase of the median cost and of the best cost, and for a decrease
of a bound."""
STATUSES = ("optimal", "feasible", "infeasible", "refused", "invalid", "crash")
"""The statuses of a question, from best to worst."""

Answer = Mapping[str, Any]


def worse(before: Answer, now: Answer) -> Iterator[str]:
    """Yield a line for each respect in which a result is worse than the recorded one."""
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
    """Yield a line for each bound that has decreased.

    A bound that is no longer listed is compared with the highest one that is listed.
    """
    listed: dict[str, float] = now.get("bounds", {})
    best = max(listed.values(), default=0.0)
    for name, value in before.get("bounds", {}).items():
        if listed.get(name, best) < value * (1 - BOUND):
            yield f"bound {name}: {value} before, {listed.get(name, best)} now"
    old, new = _known(before, "proven"), _known(now, "proven")
    if old and new and max(new) < max(old) * (1 - BOUND):
        yield f"proven bound: {max(old)} before, {max(new)} now ({max(new) / max(old) - 1:+.2%})"


def majority(statuses: Sequence[str]) -> str:
    """The most frequent status; in case of a tie, the worse one."""
    counts = Counter(statuses)
    return max(counts, key=lambda each: (counts[each], STATUSES.index(each)))


def _known(answer: Answer, key: str) -> list[float]:
    return [value for value in answer.get(key, ()) if value is not None]
