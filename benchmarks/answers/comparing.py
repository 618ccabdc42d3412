"""Answers held against those recorded: what differs, and what is worse than the rules allow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

ANY, MEAN = 1e-3, 1e-4
"""Relative: by how much one cost may be above the one recorded, and all of them on average; a bound
below."""
STATUSES = ("optimal", "feasible", "infeasible", "refused", "crash")
"""The better first."""
COSTS, BOUNDS = ("cost", "step"), ("lower_bound", "lower_bound_of_all")
COMPARED = ("status", *COSTS, *BOUNDS, "smallest_memory_limit", "smallest_device_memory", "order")
"""Of an answer; times, digests of programs and what was chosen among are recorded as
information."""

Answer = Mapping[str, Any]
Answers = Mapping[str, Answer]


def differences(known: Answers, found: Answers) -> Iterator[str]:
    """Each figure that is not the one recorded, better or worse."""
    for name in (name for name in found if name in known):
        before, now = known[name], found[name]
        for key in COMPARED:
            if before.get(key) != now.get(key):
                yield f"{name}: {key}: {_change(before.get(key), now.get(key))}"


def broken(known: Answers, found: Answers) -> Iterator[str]:
    """Each answer, and each average, that is worse than the rules allow."""
    for name, now in found.items():
        if name not in known:
            yield f"{name}: not recorded"
            continue
        yield from (f"{name}: {words}" for words in _worse(known[name], now))
    searched = [(known[name], now) for name, now in found.items() if "cost" in known.get(name, {})]
    searched = [(before, now) for before, now in searched if not _built(before)]
    for key in (*COSTS, *BOUNDS):
        losses = [loss for before, now in searched if (loss := _loss(key, before, now)) is not None]
        mean = sum(losses) / max(1, len(losses))
        if mean > MEAN:
            yield f"{key}: worse by {mean:.4%} on average"


def _worse(before: Answer, now: Answer) -> Iterator[str]:
    """The faults of one answer."""
    if before["profile"] != now["profile"]:
        yield "another profile than the one recorded"
    if STATUSES.index(now["status"]) > STATUSES.index(before["status"]):
        yield f"{before['status']} before, {now['status']} now"
    for key in (*COSTS, *BOUNDS):
        if before.get(key) is not None and now.get(key) is None:
            yield f"{key}: {before[key]} before, none now"
        loss = _loss(key, before, now)
        if loss is not None and loss > ANY:
            yield f"{key}: worse by {loss:.3%}"
    exact = [key for key in COMPARED if key.startswith("smallest_")] + ["order"] * _built(before)
    for key in exact:
        if before.get(key) != now.get(key):
            yield f"{key}: {_change(before.get(key), now.get(key))}"


def _loss(key: str, before: Answer, now: Answer) -> float | None:
    """Relative: by how much a cost is above the one recorded, or a bound below; None where one is
    not known."""
    old, new = before.get(key), now.get(key)
    if not old or new is None:
        return None
    return float((new - old) / old if key in COSTS else (old - new) / old)


def _built(answer: Answer) -> bool:
    """Whether it is a family's schedule, which nothing may change."""
    return bool(answer["command"][0] == "build")


def _change(before: Any, now: Any) -> str:
    if isinstance(before, float) and isinstance(now, float) and before:
        return f"{before} before, {now} now ({now / before - 1:+.4%})"
    return f"{before} before, {now} now"
