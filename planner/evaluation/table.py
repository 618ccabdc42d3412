"""Evaluations side by side: what all tables of them have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipeloom.ir.model.problem import Objective
from pipeloom.ir.model.profile import Profile
from pipeloom.report.summaries import asked_by_profile
from pipeloom.report.text_table import Cell, table

from .columns import Column
from .evaluation import Evaluation


def evaluations_table(rows: Sequence[Evaluation], columns: Sequence[Column]) -> str:
    """One line a row; of what has no schedule the name, and in the last column why."""

    def cells(row: Evaluation) -> list[Cell]:
        if row.planned is not None:
            return [column.cell(row) for column in columns]
        return [columns[0].cell(row), *["-"] * (len(columns) - 2), row.refusal]

    return table([column.heading for column in columns], map(cells, rows))


@dataclass(frozen=True)
class EvaluationTable:
    """Schedules of one profile side by side."""

    profile: Profile
    microbatches: int
    objective: Objective
    rows: tuple[Evaluation, ...]

    @property
    def built(self) -> list[Evaluation]:
        """The rows that have a schedule."""
        return [row for row in self.rows if row.planned is not None]

    @property
    def notes(self) -> list[str]:
        """The line on the objective where the profile asks for it."""
        asked = asked_by_profile(self.profile, self.objective)
        return [] if asked is None else [f"objective: {asked}"]

    def to_dict(self) -> dict[str, Any]:
        """The keys that all tables begin with in ``--json``."""
        return {
            "profile": self.profile.name,
            "microbatches": self.microbatches,
            "objective": self.objective.value,
        }
