"""ZB-H1 (Zero Bubble Pipeline Parallelism, Qi et al., 2024, figure 2): fewer bubbles than 1F1B.

P = 3, M = 4, T_F = T_B = T_W = 1::

    rank 0  F0 F1 F2 .  .  B0 W0 F3 B1 W1 .  B2 W2 .  B3 W3
    rank 1  .  F0 F1 .  B0 F2 .  B1 W0 F3 B2 W1 .  B3 W2 W3
    rank 2  .  .  F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3

It is 1F1B, but B sends the gradient before W runs. On rank i, W(k) runs after B(k + i). Rank i has
only P - i microbatches in flight, which leaves memory for i waiting W's; these fill the gaps while
the last B's come back to rank 0. Memory: at most P x M_B, on rank 0, as in 1F1B. Bubble
without communication: (P - 1)(T_F + T_B - T_W) if T_W <= T_F, else (P - 1) T_B.
"""

from __future__ import annotations

from pipeloom.ir.model.ops import IntArray, OpKind

from ..base import LinearFamily, alternate


class ZBH1(LinearFamily):
    name = "zb-h1"
    summary = "1F1B with B and W apart, W trailing: 1F1B's memory, fewer bubbles"

    def row(self, rank: int, ranks: int, microbatches: int) -> IntArray:
        return alternate(rank, microbatches, ahead=ranks - rank, backward=OpKind.B, delay=rank)
