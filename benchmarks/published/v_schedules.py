"""Optimized schedules for V placements, compared with the published V schedules.

The memory limits are that of table 8, and smaller and larger ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from pipeloom import InfeasibleError, Objective, Problem, Schedule, build_family, solve
from pipeloom.solver import find_family

from .. import Case, Claim, Column, Rows, Size, Table, of_part, plain, violations
from .. import Row as Figures
from ..table import digits
from .tables import SHAPE, Row, load_rows

ROWS, SWEEP = "table8 optimized", "table8 at other limits"
SHARES = (0.4, 0.5, 0.6, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 1.75, 2.0)
"""Memory limits in units of P x M_B, where M_B is that of a whole rank (two chunks)."""
SECONDS = 30.0
"""The time limit of a solve in seconds."""


def cases(size: Size) -> Iterator[Case]:
    rows = load_rows("table8")
    for row in rows[: 1 if size == "small" else None]:
        yield Case(ROWS, f"{row}@1", {"row": row, "share": 1.0}, timed=True)
    for share in SHARES if size != "small" else ():
        yield Case(SWEEP, f"{rows[0]}@{share:g}", {"row": rows[0], "share": share}, timed=True)


def measure(case: Case) -> Figures:
    """The published and the own bubble rate, and the gap to the proven bound."""
    row: Row = case.given["row"]
    problem = build_family("zb-v", row.profile, row.microbatches).problem
    limit = row.limit(case.given["share"])
    problem = replace(problem, memory_limit=(limit,) * problem.ranks)
    published = _published(problem)
    found = solve(problem, time_limit=SECONDS)
    report, cost = found.known_report, _period(found)
    return row.shape() | {
        "share": case.given["share"],
        "published": None if published is None else _rate(published),
        "found": _rate(found),
        "saved": None if published is None else _period(published) - cost,
        "gap": (cost - report.known_bound) / cost,
        "status": report.status.value,
        "bound": report.bound,
        "seconds": report.solve_seconds,
        "violations": violations(found),
    }


def _published(problem: Problem) -> Schedule | None:
    """The best published V schedule that fits in memory, or None if none fits.

    ZB-V is built to hold as many activations (of one microbatch and chunk each) as the limit
    allows.
    """
    chunks = int(problem.memory_limit[0] * (1 + 1e-9) / problem.profile.stages[0].m_b)
    built = []
    for name in (f"zb-v:{chunks}", "v-half", "v-min"):
        with suppress(InfeasibleError):
            built.append(find_family(name).build(problem))
    return min(built, key=_period, default=None)


def _period(schedule: Schedule) -> float:
    return schedule.known_timing.cost(Objective.PERIOD)


def _rate(schedule: Schedule) -> float:
    return schedule.known_timing.bubble_rate(Objective.PERIOD)


def judge(rows: Rows) -> Iterator[Claim]:
    broken = [row["case"] for row in rows if row["violations"]]
    yield Claim(ROWS, f"{len(broken)} of {len(rows)} V schedules are invalid.", not broken)
    if own := of_part(rows, ROWS):
        optimal = sum(row["status"] == "optimal" for row in own)
        same = sum(row["saved"] <= 1e-6 for row in own)
        words = (
            f"V schedules within P x M_B are proven optimal in {optimal} of {len(own)} rows of "
            f"table 8, in at most {max(row['seconds'] for row in own):.1f} s; {same} of them cost "
            "as much as ZB-V."
        )
        yield Claim(ROWS, words, optimal == len(own))
    for part in columns:
        if own := of_part(rows, part):
            worse = sum((row["saved"] or 0.0) < -1e-6 for row in own)
            words = f"{part}: {worse} of {len(own)} schedules are worse than a published one."
            yield Claim(part, words, not worse)


def _gap(row: Figures) -> str:
    return "optimal" if row["status"] == "optimal" else f"{row['gap']:.2%}"


def _found(key: str) -> Column:
    return Column(key, lambda row: None if row[key] is None else digits(row[key]))


_SHARE = plain({"memory / P M_B": "share"}, "g")
_V = Table(*SHAPE, *_SHARE, _found("published"), _found("found"), Column("gap", _gap))
columns = {ROWS: _V, SWEEP: _V}
