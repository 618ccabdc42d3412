"""Table 8 of the Zero Bubble paper, two chunks a rank: published and own bubble rates."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeloom import Objective, Profile, Schedule, StageProfile, build_family

from .. import Case, Claim, Rows, Size, Table, violations
from .. import Row as Figures
from .table5 import OWN_RULE, PUBLISHED_RULE, SHAPE, both
from .wrap import published_makespan


@dataclass(frozen=True, slots=True)
class Row:
    """One row: ``chunk`` is one of two a rank; ``published`` the bubble rates, to four digits."""

    model: str
    ranks: int
    microbatches: int
    chunk: StageProfile
    t_comm: float
    published: dict[str, float]

    def __str__(self) -> str:
        return f"{self.model}-{self.microbatches}"

    def schedule(self, family: str) -> Schedule:
        """Two chunks a rank where the family takes them, else one stage of twice the size."""
        profile = Profile((self.chunk,) * 2 * self.ranks, self.ranks, self.t_comm, name=self.model)
        if family not in {"zb-v", "interleaved-1f1b"}:
            profile = Profile((_doubled(self.chunk),) * self.ranks, self.ranks, self.t_comm)
        return build_family(family, profile, self.microbatches)

    def rates(self, family: str) -> dict[str, float]:
        """The period's bubble rate; of interleaved-1f1b the published rule's too, see table 5."""
        schedule = self.schedule(family)
        timing = schedule.known_timing
        rate = timing.bubble_rate(Objective.PERIOD)
        if family != "interleaved-1f1b":
            return {family: rate}
        published = 1.0 - timing.work / (self.ranks * published_makespan(schedule))
        return {PUBLISHED_RULE: published, OWN_RULE: rate}


def load_rows() -> list[Row]:
    data = json.loads(Path(__file__).with_name("table8.json").read_text(encoding="utf-8"))
    return [_row(entry) for entry in data["rows"]]


def _row(entry: dict[str, Any]) -> Row:
    chunk = dict(entry["profile"])
    t_comm = chunk.pop("t_comm")
    return Row(
        entry["model"],
        entry["ranks"],
        entry["microbatches"],
        StageProfile(**chunk),
        t_comm,
        entry["published"],
    )


def _doubled(chunk: StageProfile) -> StageProfile:
    return StageProfile(2 * chunk.t_f, 2 * chunk.t_b, 2 * chunk.t_w, 2 * chunk.m_b, 2 * chunk.m_w)


def cases(size: Size) -> Iterator[Case]:
    for number, row in enumerate(load_rows()):
        if size != "small" or number % 3 == 0:
            yield Case("table8", str(row), {"row": row})


def measure(case: Case) -> Figures:
    """Each figure of one row, built, verified and timed."""
    row: Row = case.given["row"]
    cells: dict[str, Any] = {}
    for family, published in row.published.items():
        faults = violations(row.schedule(family))
        for name, own in row.rates(family).items():
            differs = bool(faults) or (name != OWN_RULE and round(own, 4) != published)
            cells[name] = {"published": published, "own": own, "differs": differs}
    return {
        "model": row.model,
        "ranks": row.ranks,
        "microbatches": row.microbatches,
        "cells": cells,
    }


def judge(rows: Rows) -> Iterator[Claim]:
    cells = [cell for row in rows for name, cell in row["cells"].items() if name != OWN_RULE]
    equal = sum(not cell["differs"] for cell in cells)
    words = (
        "1F1B, ZB-H1, ZB-H2, ZB-V and interleaved 1F1B have the bubble rates of table 8 to four "
        f"digits in {equal} of {len(cells)} cells."
    )
    yield Claim("table8", words, equal == len(cells))


NAMES = ("1f1b", PUBLISHED_RULE, OWN_RULE, "zb-h1", "zb-h2", "zb-v")
columns = {"table8": Table([*SHAPE, *map(both, NAMES)])}
