"""The candidates among which a result was chosen (placements, a system's schedules, or schemes of
passing), and their table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeloom.ir.model.schedule import Schedule, gap_between
from pipeloom.ir.units import counted, duration
from pipeloom.report.summaries import from_optimal
from pipeloom.report.text_table import Cell, table
from pipeloom.solver.core.schedule_cost import iteration_time

COSTS_MORE = "costs more"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A placement, a system's schedule or a scheme of passing that was compared with others.

    ``cost``: cost of its best schedule, in milliseconds: the objective, or the step time if schemes
    are compared. ``lower_bound``: lower bound on the cost of all its schedules. ``reason``: why it
    is not the result; None for the result. ``seconds``: time of its search. ``assumed``: an
    assumption about its stages, in words. ``cuts``: number of its cuts that were searched. Unknown
    values are None.
    """

    name: str
    cost: float | None
    lower_bound: float | None
    reason: str | None = None
    seconds: float | None = None
    assumed: str | None = None
    cuts: int | None = None

    @property
    def searched(self) -> str | None:
        """For how long the candidate was searched, or else the number of its cuts that were
        searched, in words; None if neither is known."""
        if self.seconds is not None:
            return f"{self.seconds:.1f} s"
        return counted(self.cuts, "cut") if self.cuts else None

    @property
    def notes(self) -> str:
        """Why the candidate is not the result (left out if it only costs more), and the assumption
        about its stages; an empty string if there is neither."""
        reason = None if self.reason == COSTS_MORE else self.reason
        return "; ".join(filter(None, [reason, self.assumed]))


def least_bound(own: float | None, candidates: Sequence[Candidate]) -> float | None:
    """Return the minimum of ``own``, a result's lower bound, and the bounds of its candidates; None
    if none of them is known."""
    bounds = [own, *(one.lower_bound for one in candidates)]
    return min((bound for bound in bounds if bound is not None), default=None)


def candidates_table(what: str, candidates: Sequence[Candidate]) -> str:
    """Return a table of candidates. ``what``: the heading for their names, such as
    ``placement``."""
    searched = any(one.searched for one in candidates)
    rows: list[list[Cell]] = [
        [one.name, one.cost, one.lower_bound, *[one.searched] * searched, one.notes]
        for one in candidates
    ]
    return table([what, "found", "bound", *["searched"] * searched, ""], rows)


def over_all(covers: str, schedule: Schedule, bound: float | None, note: str = "") -> str:
    """Return a line on how far the schedule is from the optimum of a set of schedules.

    ``covers``: the set, in words. ``bound``: a lower bound on the cost of its schedules; if it is
    None, the line is empty. ``note``: text after the bound.
    """
    if bound is None:
        return ""
    known = from_optimal(gap_between(iteration_time(schedule), bound))
    least = f"as none takes less than {duration(bound)}{note}"
    return f"over {covers}: {known}, {least}{beyond_bounds(schedule)}"


def beyond_bounds(schedule: Schedule) -> str:
    """Return a remark such as ``; costs include 27.4 ms of averaging, bounds do not``; an empty
    string if all averaging of gradients overlaps with ops."""
    timing, objective = schedule.known_timing, schedule.problem.objective
    left = timing.exposed(objective) if any(timing.averages) else 0.0
    return f"; costs include {duration(left)} of averaging, bounds do not" if left > 0 else ""
