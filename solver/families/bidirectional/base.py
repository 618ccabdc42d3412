"""What the families share whose microbatches go both ways: each stage on two ranks.

Stage s of an even microbatch runs on rank s, of an odd one on rank P-1-s; P is even. Both ranks of
a stage keep its weights, sum its gradients once an iteration, and step alike
(:func:`pipeloom.ir.model.transfers.holders`).
"""

from __future__ import annotations

from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.units import counted

from ..base import require


class Bidirectional:
    name: str

    def problem(
        self,
        profile: Profile,
        microbatches: int,
        memory_limit: float | None,
        objective: Objective,
    ) -> Problem:
        placement = Placement.bidirectional(profile.ranks)
        limit = profile.limit_from(memory_limit)
        problem = Problem(profile, microbatches, placement, limit, objective)
        require(self.name, self.supports(problem))
        return problem

    def supports(self, problem: Problem) -> str | None:
        ranks, placement = problem.ranks, problem.placement
        if ranks % 2:
            return f"needs an even number of ranks, not {ranks}"
        if problem.stages != ranks:
            return (
                f"needs one stage a rank, not {counted(problem.stages, 'stage')} on "
                f"{counted(ranks, 'rank')}"
            )
        if placement != Placement.bidirectional(ranks):
            return f"needs odd microbatches the other way, not the placement {placement.name}"
        return None
