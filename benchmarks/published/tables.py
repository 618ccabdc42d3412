"""Tables 5 and 8 of the Zero Bubble paper: published bubble rates of the period, and those of
schedules built here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeloom import build_family, solve
from pipeloom.ir import InvalidScheduleError, Objective, Problem, Profile, Schedule, StageProfile

from .. import Case, Claim, Column, Rows, Size, Table, of_part, plain, violations
from .. import Row as Figures
from ..table import digits
from .wrap import published_makespan

CHUNKS = {"table5": 1, "table8": 2}
"""The number of chunks (stages) per rank. The times in a table are those of one chunk."""
OPTIMIZED = {"zb-1p": 1.0, "zb-2p": 2.0}  # the limit as a multiple of P x M_B
TIME_LIMIT, INTERLEAVED = 60.0, "interleaved-1f1b"
PUBLISHED_RULE, OWN_RULE = (f"{INTERLEAVED}, {rule}" for rule in ("as published", "every boundary"))


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a table.

    ``profile`` has one stage per rank. ``chunks``: the number of chunks per rank in
    interleaved-1f1b. ``published``: the bubble rate of each family, rounded to four digits.
    ``heuristic``: the bubble rate of the authors' heuristic, by memory limit in units of P x M_B.
    """

    model: str
    profile: Profile
    microbatches: int
    chunks: int
    published: dict[str, float]
    heuristic: dict[float, float]

    def __str__(self) -> str:
        return f"{self.model}-{self.microbatches}"

    def shape(self) -> Figures:
        """The fields of the row that identify it."""
        ranks, microbatches = self.profile.ranks, self.microbatches
        return {"model": self.model, "ranks": ranks, "microbatches": microbatches}

    def limit(self, share: float) -> float:
        """The memory limit of ``share`` x P x M_B. ``share`` is 1 for zb-1p and 2 for zb-2p."""
        return share * self.profile.ranks * self.profile.stages[0].m_b


def load_rows(table: str = "table5") -> list[Row]:
    path = Path(__file__).with_name(f"{table}.json")
    data = json.loads(path.read_text(encoding="utf-8"))
    return [_row(entry, CHUNKS[table]) for entry in data["rows"]]


def _row(entry: dict[str, Any], of_rank: int) -> Row:
    times = dict(entry["profile"])
    t_comm = times.pop("t_comm")
    stage = StageProfile(**{key: of_rank * value for key, value in times.items()})
    profile = Profile((stage,) * entry["ranks"], entry["ranks"], t_comm, name=entry["model"])
    chunks = entry.get("chunks", of_rank)
    heuristic = {float(share): rate for share, rate in entry.get("heuristic", {}).items()}
    known = entry["published"], heuristic
    return Row(entry["model"], profile, entry["microbatches"], chunks, *known)


def cases(size: Size) -> Iterator[Case]:
    for table, chunks in CHUNKS.items():
        for row in load_rows(table):
            if size != "small" or row.profile.ranks <= 8 * chunks:
                yield Case(table, str(row), {"row": row})


def measure(case: Case) -> Figures:
    """Build or solve, verify and simulate the schedules of one row; returns own and published
    bubble rates."""
    row: Row = case.given["row"]
    cells = {
        name: {"published": published} | own
        for family, published in row.published.items()
        for name, own in _found(row, family)
    }
    return row.shape() | {"cells": cells}


def _found(row: Row, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if name in OPTIMIZED:
        yield name, _optimized(row, row.limit(OPTIMIZED[name]))
        return
    chunks = f":{row.chunks}" if name == INTERLEAVED else ""
    schedule = build_family(f"{name}{chunks}", row.profile, row.microbatches)
    own = {"own": bubble(schedule)}
    if name == INTERLEAVED:  # with the published rule for chunks, and with the stricter one
        span = row.profile.ranks * published_makespan(schedule)
        yield PUBLISHED_RULE, {"own": 1.0 - schedule.known_timing.work / span}
        yield OWN_RULE, own
    else:
        yield name, own


def bubble(schedule: Schedule) -> float:
    """The bubble rate of the period. Raises InvalidScheduleError if the verifier finds errors."""
    if faults := violations(schedule):
        raise InvalidScheduleError(faults)
    return schedule.known_timing.bubble_rate(Objective.PERIOD)


def _optimized(row: Row, limit: float) -> dict[str, Any]:
    problem = Problem.linear(row.profile, row.microbatches, limit)
    schedule = solve(problem, time_limit=TIME_LIMIT)
    report = schedule.known_report
    least = 1.0 - schedule.known_timing.work / (row.profile.ranks * report.known_bound)
    status = {"bound": least, "bound_name": report.bound, "status": report.status.value}
    return {"own": bubble(schedule), **status, "seconds": report.solve_seconds}


def judge(rows: Rows) -> Iterator[Claim]:
    for table, families in (
        ("table5", "1F1B, ZB-H1, ZB-H2"),
        ("table8", "1F1B, ZB-H1, ZB-H2, ZB-V"),
    ):
        cells = [(n, cell) for row in of_part(rows, table) for n, cell in row["cells"].items()]
        built = [cell for name, cell in cells if name not in {*OPTIMIZED, OWN_RULE}]
        equal = sum(_worse(cell) == 0 for cell in built)
        words = (
            f"The bubble rates of {families} and interleaved 1F1B equal those of table {table[-1]} "
            f"to four digits in {equal} of {len(built)} cells."
        )
        if cells:
            yield Claim(table, words, equal == len(built))
        if solved := [(name, cell) for name, cell in cells if name in OPTIMIZED]:
            yield _proven(solved)


def _proven(cells: list[tuple[str, dict[str, Any]]]) -> Claim:
    optimal = sum(cell["status"] == "optimal" for _, cell in cells)
    twice = [_worse(cell) for name, cell in cells if name == "zb-2p"]
    words = (
        f"{optimal} of {len(cells)} schedules optimized for the rows of the Zero Bubble "
        f"paper's table 5 are proven optimal. At twice 1F1B's memory, "
        f"{sum(each < 0 for each in twice)} of {len(twice)} bubbles are smaller than published, "
        f"and {sum(each == 0 for each in twice)} are equal to four digits."
    )
    worse = any(_worse(cell) > 0 for _, cell in cells)
    return Claim("table5", words, optimal == len(cells) and not worse, "table5")


def _worse(cell: dict[str, Any]) -> float:
    """The own bubble rate minus the published one, rounded to four digits; positive if the own one
    is worse."""
    return float(round(cell["own"], 4) - cell["published"])


def both(name: str) -> Column:
    """A column with the published and the own bubble rate, followed by "optimal", or else by the
    bound if there is one."""

    def cell(row: Figures) -> str | None:
        found = row["cells"].get(name)
        if found is None:
            return None
        text = f"{digits(found['published'])} / {digits(found['own'])}"
        if found.get("status") == "optimal":
            return f"{text} optimal"
        return text if found.get("bound") is None else f"{text} (bound {digits(found['bound'])})"

    return Column(name, cell)


SHAPE = (*plain("model"), *plain({"P": "ranks", "M": "microbatches"}, "d"))
_OF_5 = ("1f1b", "zb-h1", "zb-h2", PUBLISHED_RULE, OWN_RULE, *OPTIMIZED)
_OF_8 = ("1f1b", PUBLISHED_RULE, OWN_RULE, "zb-h1", "zb-h2", "zb-v")
columns = {
    "table5": Table(*SHAPE, *map(both, _OF_5)),
    "table8": Table(*SHAPE, *map(both, _OF_8)),
}
