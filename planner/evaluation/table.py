"""Tables of evaluations."""

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
    """One line per row. If a row has no schedule: its name, and the reason in the last column."""

    def cells(row: Evaluation) -> list[Cell]:
        if row.planned is not None:
            return [column.cell(row) for column in columns]
        return [columns[0].cell(row), *["-"] * (len(columns) - 2), row.refusal]

    return table([column.heading for column in columns], map(cells, rows))


@dataclass(frozen=True)
class EvaluationTable:
    """A table of schedules for the same profile."""

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
        """A line on the objective, if the profile implies it."""
        asked = asked_by_profile(self.profile, self.objective)
        return [] if asked is None else [f"objective: {asked}"]

    def to_dict(self) -> dict[str, Any]:
        """The keys with which the ``--json`` output of each table begins."""
        return {
            "profile": self.profile.name,
            "microbatches": self.microbatches,
            "objective": self.objective.value,
        }
