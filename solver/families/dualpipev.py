"""DualPipeV (the V of DeepSeek's DualPipe, 2025): two chunks a rank, F's and BW's in pairs.

P = 2, M = 5, T_F = T_B = T_W of a chunk; lower case is the second chunk (stages P..2P-1),
``B0 --`` a fused BW of microbatch 0::

    rank 0  F0 F1 F2 f0 b0 w0 f1 F3 b1 -- f2 B0 -- F4 b2 -- f3 B1 -- b3 -- f4 .  B2 -- b4 -- B3 W3 B4 W4
    rank 1  .  F0 f0 F1 f1 F2 b0 -- f2 B0 -- F3 b1 -- f3 B1 -- F4 b2 -- f4 B2 -- b3 -- B3 -- b4 B4 w4 W4

Rank i, with h = P - 1 - i ranks below it; F, B of the first chunk, f, b of the second:

1. 2 h F's
2. i + 1 times F f
3. h times: b apart from its W, W, f
4. M - P - h times the pairs F b and f B, backwards fused
5. h times b and the pair f B, backwards fused
6. i + 1 times b B; from the middle on B and W are apart and W's wait
7. h times W B
8. W's

Published pairs run at once, an F's messages behind a BW's computation. Here the F of a pair runs before the
BW: the order is the published one, the overlap is not counted (docs/decisions/0007). The steps want M >= 2 P;
with fewer microbatches the order is that of 2 P, without those that are not there, which asks for nothing
new. Memory: at most 2 P + 1 chunks, (P + 1/2) x M_B. Bubble without communication, T_F = T_B of a chunk:
(P - 1)(2 T_B - T_W); the published (P - 1)(F&B + B - 3 W) takes a pair for one op of the length F&B.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass

from pipeloom.ir.ops import Op, OpKind
from pipeloom.ir.problem import Problem
from pipeloom.ir.schedule import Schedule

from .base import finished, require
from .folded import Folded


@dataclass(frozen=True)
class DualPipeV(Folded):
    name: str = "dualpipev"
    summary: str = "two chunks a rank in a V, F's and backwards in pairs (overlap not counted)"

    def build(self, problem: Problem) -> Schedule:
        require(self.name, self.supports(problem))
        ranks, count = problem.ranks, problem.microbatches
        order = [
            [op for op in _Steps(rank, ranks, max(count, 2 * ranks)).ops if op.microbatch < count]
            for rank in range(ranks)
        ]
        return finished(problem, order, self.name)


class _Steps:
    """``ops``: one rank's, for at least 2 P microbatches, which pass each chunk in their order."""

    def __init__(self, rank: int, ranks: int, microbatches: int) -> None:
        self._stages = rank, 2 * ranks - 1 - rank
        self._passed: Counter[tuple[bool, int]] = Counter()  # by whether it is F, and chunk
        self._late: deque[Op] = deque()
        self.ops: list[Op] = []
        below = ranks - 1 - rank
        self._enter(rank, below)
        for _ in range(microbatches - ranks - below):
            self._pair(forward=0)
            self._pair(forward=1)
        for _ in range(below):
            self._backward(1)
            self._pair(forward=1)
        self._leave(rank, below)

    def _enter(self, rank: int, below: int) -> None:
        for _ in range(2 * below):
            self._forward(0)
        for _ in range(rank + 1):
            self._forward(0)
            self._forward(1)
        for _ in range(below):
            self._backward(1, split=True)
            self._weight()
            self._forward(1)

    def _leave(self, rank: int, below: int) -> None:
        for i in range(2 * (rank + 1)):
            self._backward(1 - i % 2, split=i > rank)
        for _ in range(below):
            self._weight()
            self._backward(0, split=True)
        while self._late:
            self._weight()

    def _pair(self, forward: int) -> None:
        self._forward(forward)
        self._backward(1 - forward)

    def _forward(self, chunk: int) -> None:
        self.ops.append(Op(OpKind.F, self._stages[chunk], self._next(True, chunk)))

    def _backward(self, chunk: int, split: bool = False) -> None:
        stage, microbatch = self._stages[chunk], self._next(False, chunk)
        self.ops.append(Op(OpKind.B if split else OpKind.BW, stage, microbatch))
        if split:
            self._late.append(Op(OpKind.W, stage, microbatch))

    def _weight(self) -> None:
        self.ops.append(self._late.popleft())

    def _next(self, forward: bool, chunk: int) -> int:
        self._passed[forward, chunk] += 1
        return self._passed[forward, chunk] - 1
