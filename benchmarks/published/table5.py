"""Table 5 of the Zero Bubble paper: published and own bubble rates of the period."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeloom.ir import InvalidScheduleError, Objective, Problem, Profile, Schedule, StageProfile
from pipeloom.solver import build_family, solve

from .. import Case, Claim, Column, Rows, Size, Table, violations
from .. import Row as Figures
from ..table import digits
from .wrap import published_makespan

FAMILIES = ("1f1b", "zb-h1", "zb-h2")
OPTIMIZED = {"zb-1p": 1.0, "zb-2p": 2.0}  # the limit as a multiple of P x M_B
TIME_LIMIT, INTERLEAVED = 60.0, "interleaved-1f1b"
PUBLISHED_RULE, OWN_RULE = (f"{INTERLEAVED}, {rule}" for rule in ("as published", "every boundary"))


@dataclass(frozen=True, slots=True)
class Row:
    """One row: ``profile`` has one stage a rank, ``chunks`` is K of interleaved-1f1b.

    ``published`` gives the bubble rate of each family, to four digits.
    """

    model: str
    profile: Profile
    microbatches: int
    chunks: int
    published: dict[str, float]

    def __str__(self) -> str:
        return f"{self.model}-{self.microbatches}"

    def shape(self) -> Figures:
        """The figures that name the row."""
        ranks, microbatches = self.profile.ranks, self.microbatches
        return {"model": self.model, "ranks": ranks, "microbatches": microbatches}

    def limit(self, share: float) -> float:
        """``share`` times P x M_B: 1 for zb-1p, 2 for zb-2p."""
        return share * self.profile.ranks * self.profile.stages[0].m_b


def load_rows(table: str = "table5", of_rank: int = 1) -> list[Row]:
    """The rows of a table whose times are those of one of ``of_rank`` equal parts of a rank."""
    path = Path(__file__).with_name(f"{table}.json")
    data = json.loads(path.read_text(encoding="utf-8"))
    return [_row(entry, of_rank) for entry in data["rows"]]


def _row(entry: dict[str, Any], of_rank: int) -> Row:
    times = dict(entry["profile"])
    t_comm = times.pop("t_comm")
    stage = StageProfile(**{key: of_rank * value for key, value in times.items()})
    profile = Profile((stage,) * entry["ranks"], entry["ranks"], t_comm, name=entry["model"])
    chunks = entry.get("chunks", of_rank)
    return Row(entry["model"], profile, entry["microbatches"], chunks, entry["published"])


def cases(size: Size) -> Iterator[Case]:
    for row in load_rows():
        if size != "small" or row.profile.ranks == 8:
            yield Case("table5", str(row), {"row": row})


def measure(case: Case) -> Figures:
    """Own and published bubble rates of one row."""
    row: Row = case.given["row"]
    cells = {name: _family(row, name) for name in FAMILIES}
    cells |= _interleaved(row)
    cells |= {name: _optimized(row, name) for name in OPTIMIZED}
    return row.shape() | {"time_limit": TIME_LIMIT, "seed": 0, "cells": cells}


def _cell(row: Row, name: str, rate: float, **more: object) -> dict[str, Any]:
    """``worse`` only from the fourth digit on, which is all that is published."""
    published = row.published[name]
    worse = round(rate, 4) > published
    return {"published": published, "own": rate, "worse": worse, **more}


def bubble(schedule: Schedule) -> float:
    """The bubble rate of the period. Raises InvalidScheduleError where the verifier objects."""
    if faults := violations(schedule):
        raise InvalidScheduleError(faults)
    return schedule.known_timing.bubble_rate(Objective.PERIOD)


def _family(row: Row, name: str) -> dict[str, Any]:
    return _cell(row, name, bubble(build_family(name, row.profile, row.microbatches)))


def interleaved(row: Row) -> tuple[float, float]:
    """The bubble rates by the published rule for chunks, and by the contract's, which is
    stricter."""
    schedule = build_family(f"{INTERLEAVED}:{row.chunks}", row.profile, row.microbatches)
    strict, makespan = bubble(schedule), published_makespan(schedule)
    return 1.0 - schedule.known_timing.work / (row.profile.ranks * makespan), strict


def _interleaved(row: Row) -> dict[str, dict[str, Any]]:
    loose, strict = (_cell(row, INTERLEAVED, rate) for rate in interleaved(row))
    return {PUBLISHED_RULE: loose, OWN_RULE: strict | {"worse": False}}  # not what is published


def _optimized(row: Row, name: str) -> dict[str, Any]:
    problem = Problem.linear(row.profile, row.microbatches, row.limit(OPTIMIZED[name]))
    begin = time.perf_counter()
    schedule = solve(problem, time_limit=TIME_LIMIT)
    seconds = time.perf_counter() - begin
    timing, report = schedule.known_timing, schedule.known_report
    bound = report.lower_bound
    least = None if bound is None else 1.0 - timing.work / (row.profile.ranks * bound)
    return _cell(
        row,
        name,
        bubble(schedule),
        bound=least,
        bound_name=report.bound,
        status=report.status.value,
        seconds=seconds,
    )


def judge(rows: Rows) -> Iterator[Claim]:
    cells = [(name, cell) for row in rows for name, cell in row["cells"].items()]
    yield _in_all_digits([cell for name, cell in cells if name in {*FAMILIES, PUBLISHED_RULE}])
    optimal = [cell["status"] == "optimal" for name, cell in cells if name in OPTIMIZED]
    twice = [cell for name, cell in cells if name == "zb-2p"]
    smaller = sum(round(cell["own"], 4) < cell["published"] for cell in twice)
    equal = sum(round(cell["own"], 4) == cell["published"] for cell in twice)
    words = (
        f"{sum(optimal)} of {len(optimal)} schedules optimized for the rows of the Zero Bubble "
        f"paper's table 5 are proven optimal. At twice 1F1B's memory, {smaller} of {len(twice)} "
        f"bubbles are smaller than published, and {equal} are equal to four digits."
    )
    worse = any(cell["worse"] for _, cell in cells)
    yield Claim("table5", words, all(optimal) and not worse, "table5")


def _in_all_digits(cells: list[dict[str, Any]]) -> Claim:
    equal = sum(round(cell["own"], 4) == cell["published"] for cell in cells)
    words = (
        "1F1B, ZB-H1, ZB-H2 and interleaved 1F1B have the bubble rates of table 5 to four digits "
        f"in {equal} of {len(cells)} cells."
    )
    return Claim("table5", words, equal == len(cells))


def both(name: str) -> Column:
    """Published / own bubble rate, and the bound or that it is met."""

    def cell(row: Figures) -> str | None:
        found = row["cells"].get(name)
        if found is None:
            return None
        text = f"{digits(found['published'])} / {digits(found['own'])}"
        if found.get("status") == "optimal":
            return f"{text} optimal"
        return text if found.get("bound") is None else f"{text} (bound {digits(found['bound'])})"

    return Column(name, cell)


SHAPE = (Column("model", "model"), Column("P", "ranks", "d"), Column("M", "microbatches", "d"))
columns = {
    "table5": Table(
        [*SHAPE, *map(both, (*FAMILIES, PUBLISHED_RULE, OWN_RULE, *OPTIMIZED))],
    )
}
