"""The optimizer beside the published V schedules: at table 8's memory, at less and more, and on
other placements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pipeloom import InfeasibleError, Objective, Placement, Problem, Schedule, build_family, solve
from pipeloom.solver import find_family

from .. import Case, Claim, Column, Rows, Size, Table, of_part, violations
from .. import Row as Figures
from ..table import digits
from .table5 import SHAPE, Row
from .table8 import load_rows

ROWS, SWEEP, CUT = "table8 optimized", "table8 at other limits", "table8 on other placements"
SHARES = (0.4, 0.5, 0.6, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 1.75, 2.0)
"""Of P x M_B of a whole rank, which is 2 P chunks."""
CUTS = ("interleaved:2", "wave:2")
CUT_SHARES = (0.5, 0.75, 1.0, 1.5)
SECONDS, WORK = 30.0, 240.0
"""The limits of a solve; of other placements in millions of simulated ops a thread."""


def cases(size: Size) -> Iterator[Case]:
    rows = load_rows()
    for row in rows[: 1 if size == "small" else None]:
        yield Case(ROWS, f"{row}@1", {"row": row, "share": 1.0}, timed=True)
    if size == "small":
        return
    for share in SHARES:
        yield Case(SWEEP, f"{rows[0]}@{share:g}", {"row": rows[0], "share": share}, timed=True)
    for cut in CUTS:
        for share in CUT_SHARES:
            given = {"row": rows[0], "share": share, "cut": cut}
            yield Case(CUT, f"{cut}@{share:g}", given)


def measure(case: Case) -> Figures:
    """Published and found bubble rate, and the certified gap."""
    row, share = case.given["row"], case.given["share"]
    if case.part == CUT:
        return _on_placement(row, case.given["cut"], share)
    return _as_v(row, share)


def _on_placement(row: Row, cut: str, share: float) -> Figures:
    found = solve(_cut(row, cut, share), work_limit=WORK)
    report = found.known_report
    return {
        "placement": cut,
        "share": share,
        "work": WORK,
        "found": _rate(found),
        "gap": (_period(found) - report.known_bound) / _period(found),
        "bound": report.bound,
        "violations": violations(found),
    }


def _cut(row: Row, cut: str, share: float) -> Problem:
    """Two chunks a rank in turn, or four half as long in two waves."""
    problem, ranks = _problem(row, share), row.profile.ranks
    if cut == "wave:2":
        placement, profile = Placement.wave(ranks, 2), problem.profile.split(2)
    else:
        placement, profile = Placement.interleaved(ranks, 2), problem.profile
    return replace(problem, profile=profile, placement=placement)


def _as_v(row: Row, share: float) -> Figures:
    problem = _problem(row, share)
    published = _published(problem)
    found = solve(problem, time_limit=SECONDS)
    report = found.known_report
    cost = _period(found)
    return row.shape() | {
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
        "violations": violations(found),
    }


def _problem(row: Row, share: float) -> Problem:
    problem = build_family("zb-v", row.profile, row.microbatches).problem
    return replace(problem, memory_limit=(row.limit(share),) * problem.ranks)


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


def judge(rows: Rows) -> Iterator[Claim]:
    broken = [row["case"] for row in rows if row["violations"]]
    yield Claim(ROWS, f"{len(broken)} of {len(rows)} schedules are invalid.", not broken)
    if own := of_part(rows, ROWS):
        optimal = sum(row["status"] == "optimal" for row in own)
        same = sum(row["saved"] <= 1e-6 for row in own)
        words = (
            f"V schedules at P x M_B are proven optimal in {optimal} of {len(own)} rows of table "
            f"8, in at most {max(row['seconds'] for row in own):.1f} s; {same} of them cost what "
            "ZB-V does."
        )
        yield Claim(ROWS, words, optimal == len(own))
    for part in (ROWS, SWEEP):
        if own := of_part(rows, part):
            worse = sum((row["saved"] or 0.0) < -1e-6 for row in own)
            words = f"{part}: {worse} of {len(own)} schedules are worse than a published one."
            yield Claim(part, words, not worse)


def _gap(row: Figures) -> str:
    return "optimal" if row.get("status") == "optimal" else f"{row['gap']:.2%}"


def _found(key: str) -> Column:
    return Column(key, lambda row: None if row[key] is None else digits(row[key]))


SHARE = Column("memory / P M_B", "share", "g")
_V = Table([*SHAPE, SHARE, _found("published"), _found("found"), Column("gap", _gap)])
columns = {
    ROWS: _V,
    SWEEP: _V,
    CUT: Table([Column("placement", "placement"), SHARE, _found("found"), Column("gap", _gap),
                Column("bound", "bound")]),
}  # fmt: skip
