"""WZB1 (WeiPipe, Lin et al., 2025): separate B and W, two ops per turn; weights move round a ring.

P stages on P ranks, P even; :mod:`.ring` defines turns, phases and D. The k-th microbatch of a
rank, with s = 3P (k div 2) + P (k mod 2), runs F of stage j in phase s + j, B of stage P-1-j in
phase s + P + 2j, and the W of that stage in the next phase. P = 2, M = 4 (rank 0 has microbatches 0
and 2; ``F10`` is stage 1, microbatch 0), with lines between the turns::

    turn    0     1     2         3         4         5         6         7     8
    rank 0  F00 | F10 | B10 F02 | W10 F12 | B00 B12 | W00 W12 | B02     | W02 |
    rank 1      | F01 | F11     | B11 F03 | W11 F13 | B01 B13 | W01 W13 | B03 | W03

Two microbatches are in progress in 3P turns: the F's of one run together with half of the other's
B's and W's, then halves of the B's and W's of both, and so on. B and W alternate, so the weights
for B's are used in even phases and D's in odd ones. If both microbatches run B's and W's, two
stages' weights or D's are used in a phase q: those of stages P-1-i and P/2-1-i, where
i = (q mod P) div 2. That is why P must be even.

Makespan without communication at equal times T_F = T_B = T_W = u, if P divides M: the first P turns
(F's) and the last P turns (B's and W's) have one op, the others two. In total that is at most (3 M
+ 2 (P-1)) u if M > P, a bubble rate of (P-1) / (1.5 M + P-1), which is attained. At other times a
turn lasts as long as the two ops of its busiest rank, as some ranks run B's while others run W's.

Memory: a rank holds at most the activations of 1.5 P stages if M > P.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipeloom.ir.model.ops import OpKind
from pipeloom.ir.model.problem import Problem

from .ring import RingFamily


class WZB1(RingFamily):
    name = "wzb1"
    summary = (
        "weights go round, B and W apart, two ops a turn: 2/3 of interleave's bubble at equal times"
    )

    def supports(self, problem: Problem) -> str | None:
        if problem.ranks % 2:
            return f"needs an even number of ranks, not {problem.ranks}"
        return super().supports(problem)

    def phases(self, ranks: int, k: int) -> Iterator[tuple[int, OpKind, int]]:
        start = 3 * ranks * (k // 2) + ranks * (k % 2)
        for j in range(ranks):
            yield start + j, OpKind.F, j
            yield start + ranks + 2 * j, OpKind.B, ranks - 1 - j
            yield start + ranks + 2 * j + 1, OpKind.W, ranks - 1 - j
