"""WeiPipe-Naive (WeiPipe, Lin et al., 2025): one microbatch per rank at a time, weights move on.

P stages on P ranks that form a ring; :mod:`.ring` defines turns, phases, items and D. The k-th
microbatch of a rank runs F of stage j in phase 2Pk + j and BW of stage P-1-j in phase 2Pk + P + j.
P = 2, M = 4 (rank 0 has microbatches 0 and 2; ``F10`` is stage 1, microbatch 0, ``B`` a fused BW)::

    turn    0   1   2   3   4   5   6   7   8
    rank 0  F00 F10 B10 B00 F02 F12 B12 B02
    rank 1      F01 F11 B11 B01 F03 F13 B13 B03

Each turn has one op, but three items (as large as a stage) are sent: while a rank runs F's, the
weights for BW's and D pass unused, and vice versa. So it sends twice as much as
:mod:`.weipipe_interleave`.

Makespan without communication, if P divides M and T_F and T_BW = T_B + T_W of a stage are equal
everywhere: consider the P turns in which rank 0 has only F's (or only BW's). In the first P - 1 of
them some other rank still runs the previous kind of op, and a turn lasts as long as its longest op.
With the P - 1 turns at the end, in which the others finish, the makespan is at most::

    P T_F + (P-1) T_BW + M/P ((P-1) max(T_F, T_BW) + T_BW) + (M/P - 1) ((P-1) max(T_F, T_BW) + T_F)

Memory: a rank holds at most the activations of P stages (its whole model for one microbatch).
"""

from __future__ import annotations

from collections.abc import Iterator

from pipeloom.ir.model.ops import OpKind

from .ring import RingFamily


class WeiPipeNaive(RingFamily):
    name = "weipipe-naive"
    summary = "one microbatch after the other, weights passing by all the time"

    def phases(self, ranks: int, k: int) -> Iterator[tuple[int, OpKind, int]]:
        for j in range(ranks):
            yield 2 * ranks * k + j, OpKind.F, j
            yield 2 * ranks * k + ranks + j, OpKind.BW, ranks - 1 - j
