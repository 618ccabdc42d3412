"""The cache's question where the placement is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule
from pipeloom.solver.core.options import SolveOptions
from pipeloom.solver.placement.search import TriedPlacement
from pipeloom.solver.placement.successive_halving import Contender

from ..solving.cache import Question, digest


@dataclass(frozen=True, slots=True)
class PlacementQuestion:
    """Which of these placements, some of which do not fit, and which schedule."""

    placements: Sequence[Contender | TriedPlacement]
    options: SolveOptions

    @property
    def problems(self) -> Sequence[Problem]:
        """The placements that fit."""
        return [one.problem for one in self.placements if isinstance(one, Contender)]

    @property
    def key(self) -> str:
        """A hash: questions of the same key have the same answer."""
        fit = [Question(problem, self.options).key for problem in self.problems]
        others = [
            [one.name, one.why_not] for one in self.placements if isinstance(one, TriedPlacement)
        ]
        return digest({"placements": fit, "others": others})

    def answered_by(self, schedule: Schedule) -> Problem | None:
        """The problem of the schedule's placement; None where that is none of these."""
        return next((one for one in self.problems if one == schedule.problem), None)
