"""DAPPLE (Fan et al., 2021): early backwards, with enough forwards ahead to hide slow links.

P = 3, M = 4, T_F = T_B = T_W; ``B0 --`` a fused BW of microbatch 0::

    rank 0  F0 F1 F2 F3 .  .  .  B0 -- .  B1 -- .  B2 -- .  B3 --
    rank 1  .  F0 F1 F2 .  B0 -- F3 B1 -- .  B2 -- .  B3 --
    rank 2  .  .  F0 B0 -- F1 B1 -- F2 B2 -- F3 B3 --

DAPPLE's policy A, with P - i F's on rank i before F and BW alternate, is now called 1F1B. This is
DAPPLE's policy B, with 2 (P - i) - 1 F's. In 1F1B every microbatch waits for a message to the next
rank and one back, 2 t_comm in each period. With twice as many F's ahead it does not wait, unless 2
t_comm exceeds T_F + T_B + T_W. Memory: at most (2 P - 1) M_B, on rank 0. Bubble without
communication: that of 1F1B.
"""

from __future__ import annotations

from pipeloom.ir.model.ops import IntArray, OpKind

from ..base import LinearFamily, alternate


class Dapple(LinearFamily):
    name = "dapple"
    summary = "1F1B with twice the forwards ahead: about twice the memory, slow links hidden"

    def row(self, rank: int, ranks: int, microbatches: int) -> IntArray:
        return alternate(rank, microbatches, ahead=2 * (ranks - rank) - 1, backward=OpKind.BW)
