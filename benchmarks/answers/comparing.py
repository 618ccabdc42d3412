"""Answers held against those recorded: what differs, and what is worse than the rules allow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

ANY, MEAN = 1e-3, 1e-4
"""Relative: by how much one cost may be above the one recorded, and all of them on average; a bound below."""
STATUSES = ("optimal", "feasible", "infeasible", "refused")
"""The better first."""
COSTS, BOUNDS = ("cost", "step"), ("lower_bound", "lower_bound_of_all")
NOT_COMPARED = ("seconds", "program", "repeatable", "command")

Answers = Mapping[str, Mapping[str, Any]]


def differences(known: Answers, found: Answers) -> Iterator[str]:
    """Every figure of an answer that is not the one recorded."""
    for name, answer in found.items():
        for key, value in answer.items():
            before = known.get(name, {}).get(key)
            if key not in NOT_COMPARED and before != value:
                yield f"{name}: {key}: {before} before, {value} now{_by(before, value)}"


def broken(known: Answers, found: Answers) -> Iterator[str]:
    """What breaks a rule."""
    for name in found.keys() - known.keys():
        yield f"{name}: not recorded"
    pairs = [(name, known[name], found[name]) for name in found if name in known]
    for name, before, now in pairs:
        if STATUSES.index(now["status"]) > STATUSES.index(before["status"]):
            yield f"{name}: {before['status']} before, {now['status']} now"
        if name.startswith("families") and before.get("order") != now.get("order"):
            yield f"{name}: another schedule"
    yield from _worse(pairs, COSTS, 1.0)
    yield from _worse(pairs, BOUNDS, -1.0)


def _worse(
    pairs: list[tuple[str, Mapping[str, Any], Mapping[str, Any]]], keys: tuple[str, ...], sign: float
) -> Iterator[str]:
    """``sign`` 1: a figure that grows is worse; -1: one that falls."""
    for key in keys:
        changes = {
            name: sign * (now[key] / before[key] - 1)
            for name, before, now in pairs
            if before.get(key) and now.get(key)
        }
        for name, change in changes.items():
            if change > ANY:
                yield f"{name}: {key} worse by {change:.3%}"
        mean = sum(changes.values()) / max(1, len(changes))
        if mean > MEAN:
            yield f"{key} worse by {mean:.4%} on average"


def _by(before: Any, now: Any) -> str:
    numbers = all(isinstance(value, float) for value in (before, now))
    return f" ({now / before - 1:+.4%})" if numbers and before else ""
