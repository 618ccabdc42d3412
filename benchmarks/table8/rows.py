"""The nine rows of table 8: each row's profile and its published bubble rates."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeloom.ir.model.problem import Objective
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule
from pipeloom.solver.families import build_family

from ..table5.wrap import published_makespan


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
        return {f"{family}, as published": published, f"{family}, every boundary": rate}


def load_rows() -> list[Row]:
    data = json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8"))
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
