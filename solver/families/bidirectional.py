"""What the families share whose microbatches go both ways: each stage on two ranks.

Stage s of an even microbatch runs on rank s, of an odd one on rank P-1-s; P is even. Both ranks of a
stage keep its weights, sum its gradients once an iteration, and step alike (:func:`pipeloom.ir.travel.holders`).
"""

from __future__ import annotations

from pipeloom.ir.problem import Objective, Passing, Placement, Problem
from pipeloom.ir.profile import Profile

from .base import require


class Bidirectional:
    name: str

    def problem(
        self,
        profile: Profile,
        microbatches: int,
        memory_limit: float | None,
        objective: Objective,
    ) -> Problem:
        placement = Placement(Passing.MIXED, _owners(profile.ranks, microbatches), "bidirectional")
        limit = profile.limit_from(memory_limit)
        problem = Problem(profile, microbatches, placement, limit, objective)
        require(self.name, self.supports(problem))
        return problem

    def supports(self, problem: Problem) -> str | None:
        ranks, placement = problem.ranks, problem.placement
        if ranks % 2:
            return f"needs an even number of ranks, not {ranks}"
        if problem.stages != ranks:
            return f"needs one stage a rank, not {problem.stages} stages on {ranks} rank(s)"
        if placement.passing is not Passing.MIXED or placement.owners != _owners(
            ranks, problem.microbatches
        ):
            return f"needs odd microbatches the other way, not the placement {placement.name}"
        return None


def _owners(ranks: int, microbatches: int) -> tuple[int, ...]:
    """Stage by stage, the rank of each microbatch."""
    return tuple(
        ranks - 1 - stage if j % 2 else stage for stage in range(ranks) for j in range(microbatches)
    )
