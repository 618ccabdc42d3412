"""The placements, or a system's schedules, with which an answer was compared; their table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.units import counted, duration
from pipeloom.report.text_table import table


@dataclass(frozen=True, slots=True)
class Candidate:
    """A placement, a system's schedule or a scheme of passing that was compared.

    ``cost``: of its best schedule, in milliseconds: the objective's, or the step time if schemes
    are compared. ``lower_bound``: of all its schedules. ``reason``: why it is not the answer; None
    for the answer. ``seconds``: time of its search. Unknown values are None.
    """

    name: str
    cost: float | None
    lower_bound: float | None
    reason: str | None
    seconds: float | None = None


def least_bound(own: float | None, candidates: Sequence[Candidate]) -> float | None:
    """The minimum of an answer's ``own`` bound and its candidates' bounds; None if none is
    known."""
    bounds = [own, *(one.lower_bound for one in candidates)]
    return min((bound for bound in bounds if bound is not None), default=None)


def candidates_of(
    what: str, entries: Sequence[dict[str, Any]], chosen: str
) -> tuple[Candidate, ...]:
    """The candidates in the ``--json`` output of an answer; key ``what`` holds their names. The one
    named ``chosen`` has no reason."""
    return tuple(
        Candidate(
            each[what],
            each["cost"],
            each["lower_bound"],
            None if each[what] == chosen else each["reason"] or "costs more",
            each.get("seconds"),
        )
        for each in entries
    )


def candidates_table(what: str, entries: Sequence[dict[str, Any]]) -> str:
    """A table of the candidates in the ``--json`` output of an answer."""

    searched = any(_searched(each) for each in entries)
    rows = [
        [
            each[what],
            each["cost"],
            each["lower_bound"],
            *([_searched(each) or "-"] if searched else []),
            "; ".join(part for part in (each["reason"], each.get("assumed")) if part),
        ]
        for each in entries
    ]
    return table([what, "found", "bound", *(["searched"] if searched else []), ""], rows)


def _searched(entry: dict[str, Any]) -> str | None:
    """How long it was searched, or how many cuts; None if neither is known."""
    if entry.get("seconds") is not None:
        return f"{entry['seconds']:.1f} s"
    return counted(entry["cuts"], "cut") if entry.get("cuts") else None


def beyond_bounds(schedule: Schedule) -> str:
    """``; costs include 27.4 ms of averaging, bounds do not``; empty if no averaging is exposed."""
    timing, objective = schedule.known_timing, schedule.problem.objective
    left = timing.exposed(objective) if any(timing.averages) else 0.0
    return f"; costs include {duration(left)} of averaging, bounds do not" if left > 0 else ""
