"""ZB-H2 (Zero Bubble Pipeline Parallelism, Qi et al., 2024, figure 3): twice the memory, no bubble.

P = 3, M = 5, T_F = T_B = T_W = 1::

    rank 0   F0 F1 F2 F3 F4 B0 W0 B1 W1 B2 W2 B3 W3 B4 W4
    rank 1   .  F0 F1 F2 B0 F3 B1 F4 B2 W0 B3 W1 B4 W2 W3 W4
    rank 2   .  .  F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 W0 W1 W2 W3 W4

Rank i runs 2 (P - i) - 1 F's before its first B, enough for the time to the last rank and back. On
rank i, W(k) runs after B(k + 2 i), so that every rank ends as much later than rank 0 as it began,
and the period has no gap at equal times. Memory: at most (2 P - 1) M_B, on rank 0. Bubble of the
period without communication: (P - 1)(T_F + T_B - 2 T_W) if T_W <= T_F, else (P - 1)(T_B - T_F);
0 if that is negative.
"""

from __future__ import annotations

from pipeloom.ir.model.ops import IntArray, OpKind

from ..base import LinearFamily, alternate


class ZBH2(LinearFamily):
    name = "zb-h2"
    summary = (
        "ZB-H1 with twice the forwards in flight: about twice the memory, no bubble at equal times"
    )

    def row(self, rank: int, ranks: int, microbatches: int) -> IntArray:
        return alternate(
            rank, microbatches, ahead=2 * (ranks - rank) - 1, backward=OpKind.B, delay=2 * rank
        )
