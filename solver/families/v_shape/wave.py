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

from collections.abc import Sequence
from heapq import heappop, heappush

from pipeloom.ir.model.ops import Op, OpKind
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule

from ..base import ParametrizedFamily, finished
from .base import VShapeFamily

_SLOTS = {OpKind.F: 1, OpKind.BW: 2}


class Wave(ParametrizedFamily, VShapeFamily):
    """``number``: K; None takes the profile's own K, or 1 if it has one stage per rank."""

    base = "wave"
    summary = (
        "K times down the ranks and up (:K, 1 by default): for M = P less than 1/K of 1F1B's bubble"
    )
    parameter = "K"

    def waves(self, stages: int, ranks: int) -> int:
        return self.number or stages // (2 * ranks) or 1

    def schedule(self, problem: Problem) -> Schedule:
        order = _greedy(problem.placement.owners, problem.ranks, problem.microbatches)
        return finished(problem, order, f"wave:{problem.stages // (2 * problem.ranks)}")


def _greedy(owners: Sequence[int], ranks: int, microbatches: int) -> list[list[Op]]:
    order: list[list[Op]] = [[] for _ in range(ranks)]
    there: list[list[tuple[tuple[int, int, int], Op]]] = [[] for _ in range(ranks)]  # heaps
    busy = [False] * ranks
    ends: list[tuple[int, int, Op]] = []  # (slot, rank, op), a heap

    def offer(op: Op) -> None:
        heappush(there[owners[op.stage]], (_priority(op), op))

    for j in range(min(2 * ranks, microbatches)):
        offer(Op(OpKind.F, 0, j))
    now = 0
    while True:
        for rank in range(ranks):
            if there[rank] and not busy[rank]:
                _, op = heappop(there[rank])
                order[rank].append(op)
                busy[rank] = True
                heappush(ends, (now + _SLOTS[op.kind], rank, op))
        if not ends:
            return order
        now = ends[0][0]
        while ends and ends[0][0] == now:
            _, rank, op = heappop(ends)
            busy[rank] = False
            following = _next_op(op, len(owners), 2 * ranks)
            if following.microbatch < microbatches:
                offer(following)


def _priority(op: Op) -> tuple[int, int, int]:
    """Sort key of ready ops, lowest first: BW's come first, as they release memory."""
    if op.kind is OpKind.BW:
        return 0, op.microbatch, -op.stage
    return 1, -op.stage, op.microbatch


def _next_op(op: Op, stages: int, under_way: int) -> Op:
    """The op that ``op`` makes ready: the microbatch's next, or the F of the next one to enter."""
    if op.kind is OpKind.F:
        last = op.stage + 1 == stages
        return Op(OpKind.BW if last else OpKind.F, op.stage + (not last), op.microbatch)
    if op.stage > 0:
        return Op(OpKind.BW, op.stage - 1, op.microbatch)
    return Op(OpKind.F, 0, op.microbatch + under_way)
