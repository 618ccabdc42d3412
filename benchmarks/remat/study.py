"""One limit: the best schedule without recomputation or offload and the best with them, each with
the same work."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from pipeloom.ir.cost.remat import choice_of
from pipeloom.ir.errors import InfeasibleError
from pipeloom.ir.formats import load_profile
from pipeloom.ir.formats.schedule_json import dump_schedule
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.solver.core.relaxations import plain
from pipeloom.solver.optimize import optimize

from ..markdown import markdown

PROFILE = Path(__file__).parents[2] / "examples" / "profiles" / "gpt-6.2b-remat.json"
MICROBATCHES = 24
WORK = 150.0
"""Millions of simulated ops, for each limit with and without."""
LIMITS = (4e9, 7e9, 10e9, 14e9, 20e9, 27e9, 40e9, 54e9)


def cell(limit: float) -> dict[str, Any]:
    profile = load_profile(str(PROFILE))
    placement = Placement.linear(profile.ranks)
    problem = Problem(profile, MICROBATCHES, placement, (limit,) * profile.ranks)
    return {"limit": limit, "without": _found(plain(problem)), "with": _found(problem)}


def _found(problem: Problem) -> dict[str, Any] | None:
    """The schedule's figures; None where nothing fits."""
    try:
        schedule = optimize(problem, work_limit=WORK)
    except InfeasibleError:
        return None
    assert verify_schedule(dump_schedule(schedule)) == []
    timing, report = schedule.known_timing, schedule.known_report
    assert report.solve_seconds is not None
    choice = choice_of(problem, schedule.order)
    counts = [int(each.sum()) for each in (choice == 0, choice > 0, choice < 0)]
    return {
        "period": timing.period,
        "bound": report.known_bound,
        "bound_name": report.bound,
        "stays_recomputed_offloaded": counts,
        "seconds": round(report.solve_seconds, 1),
    }


def table(cells: Sequence[dict[str, Any]]) -> list[str]:
    head = ["limit, GB", "without: ms", "gap", "s", "with: ms", "gap", "s"]
    rows = []
    for each in cells:
        words = [f"{each['limit'] / 1e9:g}", *_words(each["without"]), *_words(each["with"])]
        words += [str(count) for count in each["with"]["stays_recomputed_offloaded"][1:]]
        rows.append(words)
    return markdown([*head, "recomputed", "offloaded"], rows, left=1)


def _words(found: dict[str, Any] | None) -> list[str]:
    if found is None:
        return ["-", "-", "-"]
    gap = 1 - found["bound"] / found["period"]
    return [f"{found['period']:.1f}", f"{gap:.1%}".replace("%", " %"), f"{found['seconds']:.0f}"]


def worse(cells: Sequence[dict[str, Any]]) -> list[str]:
    """Limits where recomputation and offload, or more memory, make it worse."""
    return [*_than_without(cells), *_than_with_less(cells)]


def _than_without(cells: Sequence[dict[str, Any]]) -> Iterator[str]:
    for each in cells:
        if each["without"] and each["with"]["period"] > each["without"]["period"] * (1 + 1e-9):
            yield f"{each['limit']:g}: worse with recomputation and offload than without"


def _than_with_less(cells: Sequence[dict[str, Any]]) -> Iterator[str]:
    for less, more in pairwise(cells):
        if more["with"]["period"] > less["with"]["period"] * (1 + 1e-9):
            yield f"{more['limit']:g}: worse than with {less['limit']:g}"
