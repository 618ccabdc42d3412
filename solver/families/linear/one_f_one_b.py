"""1F1B (PipeDream-Flush, Narayanan et al., 2021): a backward as soon as there is one.

P = 3, M = 4, T_F = T_B = T_W = 1; ``b0 --`` is a fused BW of microbatch 0::

    rank 0   F0 F1 F2 .  .  .  .  b0 -- F3 b1 -- .  b2 -- .  b3 --
    rank 1   .  F0 F1 .  .  b0 -- F2 b1 -- F3 b2 -- .  b3 --
    rank 2   .  .  F0 b0 -- F1 b1 -- F2 b2 -- F3 b3 --

Rank i holds at most P - i microbatches. Bubble without communication:
(P - 1)(T_F + T_B + T_W) beside the work.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeloom.ir.model.ops import OpKind
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule

from ..base import Linear, alternate, finished, require


@dataclass(frozen=True)
class OneFOneB(Linear):
    name: str = "1f1b"
    summary: str = "one forward, one fused backward in turn; P - i microbatches held on rank i"

    def build(self, problem: Problem) -> Schedule:
        require(self.name, self.supports(problem))
        ranks, count = problem.ranks, problem.microbatches
        order = [
            alternate(rank, count, ahead=ranks - rank, backward=OpKind.BW) for rank in range(ranks)
        ]
        return finished(problem, order, self.name)
