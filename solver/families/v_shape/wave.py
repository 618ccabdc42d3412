"""Hanayo's waves (Liu et al., 2023): stages go K times down the ranks and back up.

P = 3, K = 1, M = 3, T_F = T_B = T_W of a chunk; lower case is the second chunk (stages P..2P-1),
``B0 --`` a fused BW of microbatch 0::

    rank 0  F0 F1 F2 .  .  f0 b0 -- f1 b1 -- f2 b2 -- .  .  B0 -- .  .  B1 -- .  .  B2 --
    rank 1  .  F0 F1 F2 f0 .  f1 .  b0 -- f2 b1 -- .  B0 -- b2 -- B1 -- .  .  B2 --
    rank 2  .  .  F0 f0 F1 f1 F2 f2 .  .  b0 -- B0 -- b1 -- B1 -- b2 -- B2 --

Each rank runs whatever is ready, with the times that the paper's figure uses (T_F = 1 slot, a fused
BW = 2): a BW before an F; among BW's that of the earliest microbatch; among F's that of the latest
stage. At most 2 P microbatches are in flight. For M = P, as in the paper, the bubble at equal times
is about two thirds of that of 1F1B, divided by K, with the same memory, P x M_B. With more
microbatches, the next ones fill only part of the gaps, and memory is less than twice as much. An op
is appended after the ops it needs, so there is no deadlock.
"""

from __future__ import annotations

from pipeloom.ir.model.ops import Op, OpKind
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule

from ..base import ParametrizedFamily, finished
from ..greedy import greedy, input_of
from .base import VShapeFamily


class Wave(ParametrizedFamily, VShapeFamily):
    """The family of K waves: stages go K times down the ranks and back up.

    ``number``: K; None means the K that matches the number of stages, or 1 for one stage per rank.
    """

    base = "wave"
    summary = (
        "K times down the ranks and up (:K, 1 by default): for M = P less than 1/K of 1F1B's bubble"
    )
    parameter = "K"

    def waves(self, stages: int, ranks: int) -> int:
        return self.number or stages // (2 * ranks) or 1

    def schedule(self, problem: Problem) -> Schedule:
        stages, under_way = range(problem.stages), 2 * problem.ranks
        every = [
            Op(kind, stage, j)
            for j in range(problem.microbatches)
            for stage in stages
            for kind in (OpKind.F, OpKind.BW)
        ]
        waits = {op: input_of(op, len(stages)) for op in every}
        for j in range(under_way, problem.microbatches):
            waits[Op(OpKind.F, 0, j)] = (Op(OpKind.BW, 0, j - under_way),)
        ranks = {op: problem.placement.owners[op.stage] for op in every}
        order = greedy(waits, ranks, _priority)
        return finished(problem, order, f"wave:{problem.stages // (2 * problem.ranks)}")


def _priority(op: Op) -> tuple[int, int, int]:
    """Return the sort key of a ready op; the op with the lowest key runs first.

    BW's come before F's, as they release memory. Among BW's the earliest microbatch comes first,
    among F's the latest stage.
    """
    if op.kind is OpKind.BW:
        return 0, op.microbatch, -op.stage
    return 1, -op.stage, op.microbatch
