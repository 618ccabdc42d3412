"""GPipe (Huang et al., 2019): all forwards, then all backwards.

P = 3, M = 3, T_F = T_B = T_W = 1; ``b0 --`` is a fused BW of microbatch 0::

    rank 0   F0 F1 F2 .  .  .  .  .  .  b0 -- b1 -- b2 --
    rank 1   .  F0 F1 F2 .  .  .  b0 -- b1 -- b2 --
    rank 2   .  .  F0 F1 F2 b0 -- b1 -- b2 --

Bubble without communication: (P - 1)(T_F + T_B + T_W) beside the work. Memory: M x M_B a rank.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeloom.ir.model.ops import OpKind
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule

from ..base import Linear, alternate, finished, require


@dataclass(frozen=True)
class GPipe(Linear):
    name: str = "gpipe"
    summary: str = "all forwards, then all backwards; memory grows with the microbatches"

    def build(self, problem: Problem) -> Schedule:
        require(self.name, self.supports(problem))
        count = problem.microbatches
        order = [
            alternate(rank, count, ahead=count, backward=OpKind.BW) for rank in range(problem.ranks)
        ]
        return finished(problem, order, self.name)
