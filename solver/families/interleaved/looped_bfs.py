"""Looped breadth-first pipelines (Lamy-Poirier, 2023): K chunks per rank.

The paper is Breadth-First Pipeline Parallelism. P = 2, K = 2, M = 3, T_F = T_B = T_W of a chunk;
lower case is the second chunk (stages P..2P-1), ``B0 --`` a fused BW of microbatch 0::

    rank 0  F0 F1 F2 f0 f1 f2 .  .  .  b0 -- b1 -- b2 -- B0 -- B1 -- B2 --
    rank 1  .  F0 F1 F2 f0 f1 f2 b0 -- b1 -- b2 -- B0 -- B1 -- B2 --

All microbatches pass the first chunk, then all pass the second, and so on; backwards do the same
with the chunks reversed. The weights of each chunk are needed only once in the forwards and once in
the backwards, which suits sharded data parallelism. If M > P, messages have time to arrive before
they are needed. Memory: K M chunks, M x M_B on every rank. Bubble without communication: (P -
1)(T_F + T_B + T_W)/K if M >= P. All ranks run the same (chunk, microbatch) in the same order, so
there is no deadlock.
"""

from __future__ import annotations

from pipeloom.ir.model.ops import Op, OpKind
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule

from ..base import finished
from .base import InterleavedFamily


class LoopedBFS(InterleavedFamily):
    base = "looped-bfs"
    summary = "all microbatches chunk by chunk, K a rank (:K, 2 by default): memory grows with them"

    def schedule(self, problem: Problem) -> Schedule:
        ranks, microbatches = problem.ranks, range(problem.microbatches)
        order = []
        for rank in range(ranks):
            stages = range(rank, problem.stages, ranks)
            forwards = [Op(OpKind.F, s, j) for s in stages for j in microbatches]
            order.append(
                forwards + [Op(OpKind.BW, s, j) for s in reversed(stages) for j in microbatches]
            )
        return finished(problem, order, f"looped-bfs:{problem.stages // ranks}")
