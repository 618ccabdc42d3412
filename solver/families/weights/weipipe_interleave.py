"""WeiPipe-Interleave (WeiPipe, Lin et al., 2025): microbatches stay on ranks, weights move on.

P stages on P ranks that form a ring; :mod:`.ring` defines turns, phases and D. The k-th microbatch
of a rank runs F of stage j in phase Pk + j and BW of stage P-1-j in phase P(k+1) + j; if both are
in one turn, BW goes first. P = 2, M = 4 (rank 0 has microbatches 0 and 2; ``F10`` is stage 1,
microbatch 0, ``B`` a fused BW), with lines between the turns::

    turn    0     1     2         3         4         5     6
    rank 0  F00 | F10 | B10 F02 | B00 F12 | B12     | B02 |
    rank 1      | F01 | F11     | B11 F03 | B01 F13 | B13 | B03

D moves with the second copy of the weights, and both visit the microbatches in order, one per turn.
That order is the reason for the bubble: F's and BW's could run without D (see
docs/weight-passing.md).

Makespan without communication, with t = T_F + T_B + T_W of a stage equal everywhere: the last F is
in turn M + P - 2, the first BW in turn P. So P turns have only F's, P turns only BW's, and M - 1
turns both. In total that is at most (M + P - 1) t, the published bubble rate (P-1)/(M+P-1). If M >
P, one chain of ops takes that long: those of rank 0 until it has no F's left to run with BW's,
then the BW's that use D, rank by rank, to the last one. If M <= P, no rank has both in one turn,
and the makespan is P t + (M - 1) max(T_F, T_B + T_W), less than (M + P - 1) t if M > 1.

Memory: a rank holds at most the activations of P stages (its whole model for one microbatch).
"""

from __future__ import annotations

from collections.abc import Iterator

from pipeloom.ir.model.ops import OpKind

from .ring import RingFamily


class WeiPipeInterleave(RingFamily):
    name = "weipipe-interleave"
    summary = "weights and gradients go round, activations stay: traffic independent of length"

    def phases(self, ranks: int, k: int) -> Iterator[tuple[int, OpKind, int]]:
        for j in range(ranks):
            yield ranks * k + j, OpKind.F, j
            yield ranks * (k + 1) + j, OpKind.BW, ranks - 1 - j
