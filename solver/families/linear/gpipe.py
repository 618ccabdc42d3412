"""GPipe (Huang et al., 2019): all forwards, then all backwards.

P = 3, M = 3, T_F = T_B = T_W = 1; ``b0 --`` is a fused BW of microbatch 0::

    rank 0   F0 F1 F2 .  .  .  .  .  .  b0 -- b1 -- b2 --
    rank 1   .  F0 F1 F2 .  .  .  b0 -- b1 -- b2 --
    rank 2   .  .  F0 F1 F2 b0 -- b1 -- b2 --

Bubble without communication: (P - 1)(T_F + T_B + T_W). Memory: M x M_B per rank.
"""

from __future__ import annotations

from pipeloom.ir.model.ops import IntArray, OpKind

from ..base import LinearFamily, alternate


class GPipe(LinearFamily):
    name = "gpipe"
    summary = "all forwards, then all backwards; memory grows with the microbatches"

    def row(self, rank: int, ranks: int, microbatches: int) -> IntArray:
        return alternate(rank, microbatches, ahead=microbatches, backward=OpKind.BW)
