"""The base of the families whose microbatches go in both directions: each stage is on two ranks.

Stage s of an even microbatch runs on rank s, of an odd one on rank P-1-s; P is even. Both ranks of
a stage keep its weights, sum its gradients once per iteration, and make the same optimizer step
(:func:`pipeloom.ir.model.transfers.holders`).
"""

from __future__ import annotations

from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile

from ..base import Family, needs_one_stage


class BidirectionalFamily(Family):
    def placed(self, profile: Profile) -> tuple[Profile, Placement]:
        return profile, Placement.bidirectional(profile.ranks)

    def supports(self, problem: Problem) -> str | None:
        ranks, placement = problem.ranks, problem.placement
        if ranks % 2:
            return f"needs an even number of ranks, not {ranks}"
        if problem.stages != ranks:
            return needs_one_stage(problem)
        if placement != Placement.bidirectional(ranks):
            return f"needs odd microbatches the other way, not the placement {placement.name}"
        return None
