"""WZB2 (WeiPipe, Lin et al., 2025): separate B and W, one op per turn; weights move round a ring.

P stages on P ranks; :mod:`.ring` defines turns and phases. The k-th microbatch of a rank runs F of
stage j in phase 3Pk + j, B of stage P-1-j in phase 3Pk + P + j and W of stage j in phase 3Pk + 2P +
j. P = 2, M = 4 (rank 0 has microbatches 0 and 2; ``F10`` is stage 1, microbatch 0)::

    turn    0   1   2   3   4   5   6   7   8   9   10  11  12
    rank 0  F00 F10 B10 B00 W00 W10 F02 F12 B12 B02 W02 W12
    rank 1      F01 F11 B11 B01 W01 W11 F03 F13 B13 B03 W03 W13

Each turn has one op, but three items (as large as a stage) are sent, of which the op uses one. So
it sends three times as much as :mod:`.weipipe_interleave`.

Makespan without communication at equal times T_F = T_B = T_W = u, if P divides M: (3 M + P-1) u, a
bubble rate of (P-1) / (3 M + P-1). The period has no bubble. At other times, equal on all stages, a
turn lasts as long as its longest op. Consider the P turns in which rank 0 has only F's (or only
B's, or W's). In the first P - 1 of them some other rank still runs the previous kind of op, so the
makespan is at most::

    P T_F + (P-1) T_W + M/P ((P-1) (max(T_F, T_B) + max(T_B, T_W)) + T_B + T_W)
        + (M/P - 1) ((P-1) max(T_W, T_F) + T_F)

Memory: a rank holds at most the activations of P stages (its whole model for one microbatch).
"""

from __future__ import annotations

from collections.abc import Iterator

from pipeloom.ir.model.ops import OpKind

from .ring import RingFamily


class WZB2(RingFamily):
    name = "wzb2"
    summary = (
        "weights go round, B and W apart, one op a turn: 1/3 of interleave's bubble at equal times"
    )

    def phases(self, ranks: int, k: int) -> Iterator[tuple[int, OpKind, int]]:
        start = 3 * ranks * k
        for j in range(ranks):
            yield start + j, OpKind.F, j
            yield start + ranks + j, OpKind.B, ranks - 1 - j
            yield start + 2 * ranks + j, OpKind.W, j
