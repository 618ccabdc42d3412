"""The optimizer beside the published V schedules: at the table's memory, and at less and more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pipeloom.ir.errors import InfeasibleError
from pipeloom.ir.formats.schedule_json import dump_schedule
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.solver.families import find_family
from pipeloom.solver.optimize import optimize

from ..markdown import markdown
from .rows import Row

SHARES = (0.4, 0.5, 0.6, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 1.75, 2.0)
"""Of P x M_B of a whole rank, which is 2 P chunks."""
CUTS = ("interleaved:2", "wave:2")
CUT_SHARES = (0.5, 0.75, 1.0, 1.5)


def at_the_table(row: Row, seconds: float) -> dict[str, Any]:
    """The row at P x M_B: published and found bubble rate, and the certified gap."""
    return _cell(row, 1.0, seconds)


def sweep(row: Row, seconds: float) -> Iterator[dict[str, Any]]:
    """The row at each of :data:`SHARES`."""
    for share in SHARES:
        yield _cell(row, share, seconds)


def other_cuts(row: Row, work: float) -> Iterator[dict[str, Any]]:
    """The row's model on other placements, ``work`` million simulated ops a thread for each: rate
    and gap."""
    for cut in CUTS:
        for share in CUT_SHARES:
            problem = _cut(row, cut, share)
            found = optimize(problem, work_limit=work)
            report = found.known_report
            yield {
                "placement": cut,
                "share": share,
                "found": _rate(found),
                "gap": (_period(found) - report.known_bound) / _period(found),
                "bound": report.bound,
                "violations": verify_schedule(dump_schedule(found)),
            }


def _cut(row: Row, cut: str, share: float) -> Problem:
    """Two chunks a rank in turn, or four half as long in two waves."""
    problem, ranks = _problem(row, share), row.ranks
    if cut == "wave:2":
        placement, profile = Placement.wave(ranks, 2), problem.profile.split(2)
    else:
        placement, profile = Placement.interleaved(ranks, 2), problem.profile
    return replace(problem, profile=profile, placement=placement)


def cut_lines(cells: list[dict[str, Any]]) -> str:
    """A Markdown table of :func:`other_cuts`."""
    rows = [
        [c["placement"], f"{c['share']:g}", _four(c["found"]), f"{c['gap']:.2%}", c["bound"]]
        for c in cells
    ]
    return "\n".join(markdown(["placement", "memory / P M_B", "found", "gap", "bound"], rows))


def _cell(row: Row, share: float, seconds: float) -> dict[str, Any]:
    problem = _problem(row, share)
    published = _published(problem)
    found = optimize(problem, time_limit=seconds)
    report = found.known_report
    cost = _period(found)
    return {
        "model": row.model,
        "ranks": row.ranks,
        "microbatches": row.microbatches,
        "share": share,
        "published": None if published is None else _rate(published),
        "family": None
        if published is None or published.report is None
        else published.report.family,
        "found": _rate(found),
        "saved": None if published is None else _period(published) - cost,
        "gap": (cost - report.known_bound) / cost,
        "status": report.status.value,
        "bound": report.bound,
        "seconds": report.solve_seconds,
        "violations": verify_schedule(dump_schedule(found)),
    }


def _problem(row: Row, share: float) -> Problem:
    problem = row.schedule("zb-v").problem
    limit = share * 2 * row.ranks * row.chunk.m_b
    return replace(problem, memory_limit=(limit,) * row.ranks)


def _published(problem: Problem) -> Schedule | None:
    """The best of the published V schedules that fit; ZB-V with room for as many chunks as fit."""
    chunks = int(problem.memory_limit[0] * (1 + 1e-9) / problem.profile.stages[0].m_b)
    built = []
    for name in (f"zb-v:{chunks}", "v-half", "v-min"):
        try:
            built.append(find_family(name).build(problem))
        except InfeasibleError:
            continue
    return min(built, key=_period, default=None)


def _period(schedule: Schedule) -> float:
    return schedule.known_timing.cost(Objective.PERIOD)


def _rate(schedule: Schedule) -> float:
    return schedule.known_timing.bubble_rate(Objective.PERIOD)


def failures(cells: list[dict[str, Any]]) -> list[str]:
    """The cells that are not valid, or above a published schedule, in words."""
    return [
        f"{cell['model']}, M = {cell['microbatches']}, {cell['share']:g} P x M_B"
        for cell in cells
        if cell["violations"] or (cell["saved"] is not None and cell["saved"] < -1e-6)
    ]


def lines(cells: list[dict[str, Any]]) -> str:
    """A Markdown table."""
    head = ["model", "P", "M", "memory / P M_B", "published", "found", "gap"]
    rows = []
    for cell in cells:
        words = [cell["model"], str(cell["ranks"]), str(cell["microbatches"]), f"{cell['share']:g}"]
        gap = "optimal" if cell["status"] == "optimal" else f"{cell['gap']:.2%}"
        rows.append([*words, _four(cell["published"]), _four(cell["found"]), gap])
    return "\n".join(markdown(head, rows))


def _four(rate: float | None) -> str:
    return "-" if rate is None else f"{rate:.4f}"
