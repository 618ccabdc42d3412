"""One model at one limit: recomputed nowhere, everywhere, at one level where it pays, or at any
level where it pays, each with the same work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeloom.ir.errors import InfeasibleError
from pipeloom.ir.formats.schedule_json import dump_schedule
from pipeloom.ir.model.ops import OpKind
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import WHOLE
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.planner.inputs.problem_setup import with_remat
from pipeloom.solver.optimize import optimize

from ..markdown import markdown
from .front import Model, profile

MICROBATCHES = 16
WORK = 300.0
"""Millions of simulated ops, for each column of each cell."""
LIMITS = (0.35, 0.5, 0.7, 0.9)
"""Shares of the M_B of as many microbatches as there are ranks: what 1F1B holds on the first."""
ALL, NONE, LEVELS = "all", "none", "levels"


def cell(model: Model, share: float) -> dict[str, Any]:
    """The periods found for ``model`` with so much memory on each rank, by what is recomputed."""
    whole = profile(model)
    limit = share * model.ranks * max(stage.m_b for stage in whole.stages)
    names = [level.name for level in whole.stages[0].levels]
    asked = {NONE: "none", ALL: WHOLE, **{name: name for name in names}, LEVELS: "auto"}
    found = {}
    for column, words in asked.items():
        given = with_remat(whole, words, "auto", model.name)
        placement = Placement.linear(model.ranks)
        problem = Problem(given, MICROBATCHES, placement, (limit,) * model.ranks)
        found[column] = _found(problem, everywhere=column == ALL)
    return {"model": model.name, "share": share, "limit": limit, "found": found}


def _found(problem: Problem, *, everywhere: bool) -> dict[str, Any] | None:
    """The schedule's figures; None where nothing fits."""
    try:
        schedule = optimize(problem, work_limit=WORK, recompute_all=everywhere)
    except InfeasibleError:
        return None
    assert verify_schedule(dump_schedule(schedule)) == []
    timing, report = schedule.known_timing, schedule.known_report
    stages = problem.profile.stages
    counts = Counter(
        stages[op.stage].levels[op.level].name
        for rank in range(problem.ranks)
        for op in schedule.ops(rank)
        if op.kind is OpKind.R
    )
    return {
        "period": timing.period,
        "bound": report.lower_bound,
        "bound_name": report.bound_name,
        "recomputed": dict(counts.most_common()),
        "seconds": round(report.solve_seconds or 0.0, 1),
    }


def table(cells: Sequence[Mapping[str, Any]]) -> list[str]:
    names = list(cells[0]["found"])
    head = ["model", "memory", *names, "gained", "gap"]
    rows = []
    for each in cells:
        periods = [_period(each, name) for name in names]
        words = [f"{period:.1f}" if period < float("inf") else "-" for period in periods]
        last = each["found"][LEVELS]
        gap = 1 - last["bound"] / last["period"]
        rows.append(
            [each["model"], f"{each['share']:g}", *words, _percent(gained(each)), _percent(gap)]
        )
    return markdown(head, rows, left=1)


def gained(each: Mapping[str, Any]) -> float:
    """The share of the best other column's period that levels save; negative where they lose."""
    best = min(_period(each, name) for name in each["found"] if name != LEVELS)
    return 1 - _period(each, LEVELS) / best


def failures(cells: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Cells where another column is better, and too few where levels are."""
    for each in cells:
        if gained(each) < -1e-9:
            yield f"{each['model']}, {each['share']:g}: worse with levels"
    better = sum(gained(each) > 1e-6 for each in cells)
    if better < len(cells) / 2:
        yield f"expected levels to be better in half of {len(cells)} cells, got {better}"


def _period(each: Mapping[str, Any], name: str) -> float:
    found = each["found"][name]
    return float("inf") if found is None else float(found["period"])


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %".replace("-0.0", "0.0")
