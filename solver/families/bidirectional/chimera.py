"""Chimera (Li and Hoefler, 2021): two pipelines in opposite directions, each stage on two ranks.

Each direction is 1F1B, and a rank runs whichever op of the two can start first. P = 4, M = 4, T_F =
T_B = T_W (``F1'`` goes in the other direction, ``b0 --`` is a fused BW)::

    rank 0   F0 F2 .  F1'b1'-- F3'b3'-- .  b0 -- .  .  b2 --
    rank 1   .  F0 F1'F2 F3'.  b1'-- b0 -- b3'-- b2 -- .  .
    rank 2   .  F1'F0 F3'F2 .  b0 -- b1'-- b2 -- b3'-- .  .
    rank 3   F1'F3'.  F0 b0 -- F2 b2 -- .  b1'-- .  .  b3'--

Bubble without communication for M = P, T_BW = 2 T_F: 2 (P-2) T_F, as published. With more
microbatches, those of the next P fill some of the gaps, and the bubble is smaller.

Memory: rank i holds at most P - i microbatches of one direction and i + 1 of the other, at most P
if M = P.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pipeloom.ir.model.ops import Op, OpKind, unpack
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule

from ..base import alternate, finished
from .base import BidirectionalFamily

_LENGTH = {OpKind.F: 1, OpKind.BW: 2}  # durations by which the two directions are merged


@dataclass(frozen=True)
class Chimera(BidirectionalFamily):
    """``most``: microbatches of each direction that a rank holds at most; None: as many as 1F1B."""

    name = "chimera"
    summary = "two 1F1B pipelines against each other, each stage on two ranks"
    most: int | None = None

    def schedule(self, problem: Problem) -> Schedule:
        return finished(problem, _merged(problem.ranks, problem.microbatches, self.most), self.name)


def _merged(ranks: int, microbatches: int, most: int | None) -> list[list[Op]]:
    """Merge the 1F1B orders of both directions on each rank, the op that can start first first.

    On ties the backward goes first.
    """
    queues = [
        (rank, list(reversed(list(_direction(stage, ranks, microbatches, odd, most)))))
        for rank in range(ranks)
        for odd, stage in enumerate((rank, ranks - 1 - rank))
    ]
    clock, ends = [0] * ranks, dict[Op, int]()
    order: list[list[Op]] = [[] for _ in range(ranks)]
    while heads := [
        one for one in queues if one[1] and _ready(one[1][-1], ranks, ends) is not None
    ]:

        def start(one: tuple[int, list[Op]]) -> tuple[int, bool, int, int]:
            rank, queue = one
            op = queue[-1]
            at = max(clock[rank], _ready(op, ranks, ends) or 0)
            return at, op.kind is OpKind.F, op.microbatch, rank

        rank, queue = min(heads, key=start)
        at = start((rank, queue))[0]
        op = queue.pop()
        clock[rank] = ends[op] = at + _LENGTH[op.kind]
        order[rank].append(op)
    return order


def _direction(
    stage: int, ranks: int, microbatches: int, odd: int, most: int | None
) -> Iterator[Op]:
    """1F1B on ``stage`` of one direction: the even microbatches (``odd`` = 0) or the odd ones."""
    count, ahead = (microbatches + 1 - odd) // 2, min(ranks - stage, most or ranks)
    for op in unpack(alternate(stage, count, ahead=ahead, backward=OpKind.BW)):
        yield Op(op.kind, op.stage, 2 * op.microbatch + odd)


def _ready(op: Op, ranks: int, ends: dict[Op, int]) -> int | None:
    """When the op's input is ready; None if that is not known yet."""
    if op.kind is OpKind.F:
        return 0 if op.stage == 0 else ends.get(Op(OpKind.F, op.stage - 1, op.microbatch))
    last = op.stage == ranks - 1
    return ends.get(
        Op(OpKind.F, op.stage, op.microbatch)
        if last
        else Op(OpKind.BW, op.stage + 1, op.microbatch)
    )
