"""An example profile at eight memory limits, with and without recomputation and offload.

All solves have the same work limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from pipeloom import InfeasibleError, Placement, Problem, load_profile, solve
from pipeloom.ir import OpKind

from .. import Case, Claim, Column, Row, Rows, Size, Table, plain, violations

PROFILE = Path(__file__).parents[2] / "examples" / "profiles" / "gpt-6.2b-remat.json"
PART, MICROBATCHES = "recomputation and offload", 24
WORK = 150.0
"""The work limit of each solve, in millions of simulated ops."""
LIMITS = (4e9, 7e9, 10e9, 14e9, 20e9, 27e9, 40e9, 54e9)


def cases(size: Size) -> Iterator[Case]:
    for limit in LIMITS[-1:] if size == "small" else LIMITS:
        yield Case(PART, f"{limit / 1e9:g} GB", {"limit": limit})


def measure(case: Case) -> Row:
    limit = case.given["limit"]
    profile = load_profile(str(PROFILE))
    placement = Placement.linear(profile.ranks)
    problem = Problem(profile, MICROBATCHES, placement, (limit,) * profile.ranks)
    stages = (replace(stage, t_r=None, m_r=None, m_o=None) for stage in profile.stages)
    without = replace(problem, profile=replace(profile, stages=tuple(stages), host_link=None))
    return {"limit": limit, "without": _found(without), "with": _found(problem)}


def _found(problem: Problem) -> dict[str, Any] | None:
    """The figures of the best schedule found, or None if no schedule fits in memory."""
    try:
        schedule = solve(problem, work_limit=WORK)
    except InfeasibleError:
        return None
    assert violations(schedule) == []
    timing, report = schedule.known_timing, schedule.known_report
    kinds = [op.kind for rank in range(problem.ranks) for op in schedule.ops(rank)]
    counts = [kinds.count(kind) for kind in (OpKind.F, OpKind.R, OpKind.O)]
    return {
        "period": timing.period,
        "bound": report.known_bound,
        "bound_name": report.bound,
        "stays_recomputed_offloaded": [counts[0] - counts[1] - counts[2], *counts[1:]],
    }


def judge(rows: Rows) -> Iterator[Claim]:
    """Yield the claim that recomputation and offload never raise the cost, nor does more memory.

    That is, at each memory limit, the schedule with recomputation and offload costs no more than
    the one without them, and no more than the one with them at the next smaller limit.
    """
    pairs = [(row["without"], row["with"]) for row in rows if row["without"]]
    pairs += [(less["with"], more["with"]) for less, more in pairwise(rows)]
    wrong = sum(after["period"] > before["period"] * (1 + 1e-9) for before, after in pairs)
    gaps = [_gap(row["with"]) for row in rows]
    words = (
        f"Recomputation and offload at {len(rows)} memory limits: {wrong} schedules cost more "
        f"than without them or than with less memory; the gaps are at most {max(gaps):.1%}."
    )
    yield Claim(PART, words, not wrong)


def _gap(found: dict[str, Any]) -> float:
    return float(1 - found["bound"] / found["period"])


def _of(way: str, figure: Callable[[dict[str, Any]], Any]) -> Callable[[Row], Any]:
    return lambda row: None if row[way] is None else figure(row[way])


def _columns(way: str) -> Iterator[Column]:
    yield Column(f"{way}: ms", _of(way, lambda found: found["period"]), ".1f")
    yield Column("gap", _of(way, _gap), ".1%")


def _count(kind: int) -> Callable[[Row], Any]:
    return _of("with", lambda found: found["stays_recomputed_offloaded"][kind])


columns = {
    PART: Table(
        *plain({"limit": "case"}),
        *_columns("without"),
        *_columns("with"),
        Column("recomputed", _count(1)),
        Column("offloaded", _count(2)),
    )
}
