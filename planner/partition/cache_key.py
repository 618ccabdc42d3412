"""The cache's question where the cut is chosen too."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from pipeloom.ir.formats import dump_profile, finite
from pipeloom.ir.model.layered_profile import LayeredProfile
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.schedule import Schedule
from pipeloom.solver.core.options import SolveOptions
from pipeloom.solver.partition.candidate_pool import Way
from pipeloom.solver.partition.cuts import Rules
from pipeloom.solver.placement.search import room

from ..solving.cache import digest, limits_of


@dataclass(frozen=True, slots=True)
class CutQuestion:
    """Which cut, placement and schedule; ``memory_limit``: one a rank."""

    profile: LayeredProfile
    microbatches: int
    placements: tuple[Placement, ...]
    memory_limit: tuple[float, ...]
    objective: Objective
    way: Way
    rules: Rules
    options: SolveOptions

    @property
    def key(self) -> str:
        """A hash: questions of the same key have the same answer."""
        profile = self.profile.as_stages
        asked = {
            "layers": dump_profile(profile),
            "tied": list(self.profile.tied),
            "microbatches": self.microbatches,
            "placements": [[p.name, p.table] for p in self.placements],
            "memory_limit": finite(self.memory_limit),
            "objective": self.objective.value,
            "way": self.way.value,
            "rules": [self.rules.least, self.rules.most],
        }
        return digest(asked | limits_of(self.options))

    def answered_by(self, schedule: Schedule) -> Problem | None:
        """The problem of the schedule's cut; None where it is no cut of these layers."""
        found = schedule.problem
        placement = next((p for p in self.placements if p == found.placement), None)
        sizes = [len(stage.layers) for stage in found.profile.stages]
        if placement is None or 0 in sizes or sum(sizes) != len(self.profile.layers):
            return None
        profile = self.profile.cut([0, *accumulate(sizes)][:-1])
        limit = room(profile, placement, self.memory_limit)
        problem = Problem(profile, self.microbatches, placement, limit, self.objective)
        return problem if found == problem else None
