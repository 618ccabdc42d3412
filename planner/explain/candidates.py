"""Placements, or a system's schedules, that an answer was compared with, and a table of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.units import counted, duration
from pipeloom.report.text_table import table


@dataclass(frozen=True, slots=True)
class Candidate:
    """One of those compared: a placement, or a scheme of passing.

    ``cost``: of its best schedule, in milliseconds: the objective's, or the step where schemes are
    compared. ``lower_bound``: of its schedules. ``reason``: why it is not the answer; None for the
    answer. ``seconds``: how long it was searched. Figures are None where they are not known.
    """

    name: str
    cost: float | None
    lower_bound: float | None
    reason: str | None
    seconds: float | None = None


def least_bound(own: float | None, candidates: Sequence[Candidate]) -> float | None:
    """The least of an answer's ``own`` bound and those of its candidates; None where none is
    known."""
    bounds = [own, *(one.lower_bound for one in candidates)]
    return min((bound for bound in bounds if bound is not None), default=None)


def candidates_of(
    what: str, entries: Sequence[dict[str, Any]], chosen: str
) -> tuple[Candidate, ...]:
    """The entries of a ``--json`` answer, whose names are at the key ``what``, ``chosen`` among
    them."""
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
    """A table of such entries."""

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


def beyond_bounds(schedule: Schedule) -> str:
    """``; costs include 27.4 ms of averaging, bounds do not``; empty if none is left after ops."""
    timing, objective = schedule.known_timing, schedule.problem.objective
    left = timing.exposed(objective) if any(timing.averages) else 0.0
    return f"; costs include {duration(left)} of averaging, bounds do not" if left > 0 else ""


def _searched(entry: dict[str, Any]) -> str | None:
    """How long, or how many cuts; None where neither is known."""
    if entry.get("seconds") is not None:
        return f"{entry['seconds']:.1f} s"
    return counted(entry["cuts"], "cut") if entry.get("cuts") else None
