"""1F1B (PipeDream-Flush, Narayanan et al., 2021): each backward runs as early as possible.

P = 3, M = 4, T_F = T_B = T_W = 1; ``b0 --`` is a fused BW of microbatch 0::

    rank 0   F0 F1 F2 .  .  .  .  b0 -- F3 b1 -- .  b2 -- .  b3 --
    rank 1   .  F0 F1 .  .  b0 -- F2 b1 -- F3 b2 -- .  b3 --
    rank 2   .  .  F0 b0 -- F1 b1 -- F2 b2 -- F3 b3 --

Rank i holds at most P - i microbatches. Bubble without communication: (P - 1)(T_F + T_B + T_W).
"""

from __future__ import annotations

from pipeloom.ir.model.ops import IntArray, OpKind

from ..base import LinearFamily, alternate


class OneFOneB(LinearFamily):
    name = "1f1b"
    summary = "one forward, one fused backward in turn; P - i microbatches held on rank i"

    def row(self, rank: int, ranks: int, microbatches: int) -> IntArray:
        return alternate(rank, microbatches, ahead=ranks - rank, backward=OpKind.BW)
