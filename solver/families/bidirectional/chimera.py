"""Chimera (Li and Hoefler, 2021): two pipelines in opposite directions, each stage on two ranks.

Each direction is 1F1B, and a rank runs whichever op of the two can start first. P = 4, M = 4, T_F =
T_B = T_W (``F1'`` goes in the other direction, ``b0 --`` is a fused BW)::

    rank 0   F0 F2 .  F1'b1'-- F3'b3'-- .  b0 -- .  .  b2 --
    rank 1   .  F0 F1'F2 F3'.  b1'-- b0 -- b3'-- b2 -- .  .
    rank 2   .  F1'F0 F3'F2 .  b0 -- b1'-- b2 -- b3'-- .  .
    rank 3   F1'F3'.  F0 b0 -- F2 b2 -- .  b1'-- .  .  b3'--

Bubble without communication for M = P, T_BW = 2 T_F: 2 (P-2) T_F, as published. With more
microbatches, some of the gaps are filled by microbatches P, P + 1, ..., and the bubble is smaller.

Memory: rank i holds at most P - i microbatches of one direction and i + 1 of the other, and at most
P in total if M = P.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from pipeloom.ir.model.ops import Op, OpKind, unpack
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule

from ..base import alternate, finished
from ..greedy import greedy, input_of
from .base import BidirectionalFamily


@dataclass(frozen=True)
class Chimera(BidirectionalFamily):
    """Chimera with at most ``most`` microbatches of each direction between F and BW on a rank.

    ``most``: further limits the number of these microbatches, which on stage s is at most P - s, as
    in 1F1B; None means no further limit.
    """

    name = "chimera"
    summary = "two 1F1B pipelines against each other, each stage on two ranks"
    most: int | None = None

    def schedule(self, problem: Problem) -> Schedule:
        return finished(problem, _merged(problem.ranks, problem.microbatches, self.most), self.name)


def _merged(ranks: int, microbatches: int, most: int | None) -> list[list[Op]]:
    """Return each rank's ops in order, merged from the 1F1B orders of both directions.

    If several ops are ready, backwards go before forwards, and earlier microbatches before later
    ones. ``most``: as in :class:`Chimera`.
    """
    waits, of = dict[Op, tuple[Op, ...]](), dict[Op, int]()
    for rank in range(ranks):
        for odd, stage in enumerate((rank, ranks - 1 - rank)):
            row = _direction(stage, ranks, microbatches, odd, most)
            of |= dict.fromkeys(row, rank)
            waits |= {op: input_of(op, ranks) for op in row}
            waits |= {op: (before, *waits[op]) for before, op in pairwise(row)}
    return greedy(waits, of, lambda op: (op.kind is OpKind.F, op.microbatch))


def _direction(stage: int, ranks: int, microbatches: int, odd: int, most: int | None) -> list[Op]:
    """Return the ops of ``stage`` for the microbatches of one direction, in 1F1B order.

    ``odd``: 0 for the direction of the even microbatches, 1 for that of the odd ones. ``most``: the
    maximum number of microbatches between F and BW, if it is below that of 1F1B; None means no
    further limit.
    """
    count, ahead = (microbatches + 1 - odd) // 2, min(ranks - stage, most or ranks)
    row = unpack(alternate(stage, count, ahead=ahead, backward=OpKind.BW))
    return [Op(op.kind, op.stage, 2 * op.microbatch + odd) for op in row]
