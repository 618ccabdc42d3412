"""The twelve rows of table 5: each row's profile and its published bubble rates."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeloom.ir.model.profile import Profile, StageProfile


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

    def limit(self, share: float) -> float:
        """``share`` times P x M_B: 1 for zb-1p, 2 for zb-2p."""
        return share * self.profile.ranks * self.profile.stages[0].m_b


def load_rows() -> list[Row]:
    data = json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8"))
    return [_row(entry) for entry in data["rows"]]


def _row(entry: dict[str, Any]) -> Row:
    times = dict(entry["profile"])
    t_comm = times.pop("t_comm")
    stages = (StageProfile(**times),) * entry["ranks"]
    profile = Profile(stages, entry["ranks"], t_comm, name=entry["model"])
    return Row(entry["model"], profile, entry["microbatches"], entry["chunks"], entry["published"])
