"""The steps that DualPipe and DualPipeV share: two chunks per rank, F's and BW's in pairs.

A chunk is one of the rank's two stages. A microbatch passes the first chunks of ``turns`` ranks
before it turns round (DualPipeV), or gets to the half of the ranks where the other direction enters
(DualPipe). The rank at ``place`` among these (from 0 on) has h = turns - 1 - place ranks after it.
It runs the following steps. F and B belong to the first chunk, f and b to the second; B and b are
BW's except where B and W are two ops:

1. 2 h times F
2. place + 1 times F f
3. h times b as two ops (B, W), then f
4. count - turns - h times the pairs F b and f B
5. h times b and the pair f B
6. place + 1 times b B; from the middle on, B and W are two ops, and the W's wait
7. h times a waiting W, and a B whose W waits
8. the waiting W's

``count`` microbatches pass each chunk in order. The steps need count >= 2 * turns; with fewer
microbatches, the order is that for count = 2 * turns without the ops of the missing microbatches,
which adds no dependencies. If h = 0, the ops of the first pair run one after the other, so that the
output of its F need not wait for its b.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from pipeloom.ir.model.ops import Op, OpKind
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule

from .base import finished

Row: TypeAlias = tuple[list[Op], tuple[int, ...]]  # a rank's ops, and the positions of its pairs


@dataclass(frozen=True, slots=True)
class DualPipeStep:
    """An op of a rank: the op of this ``kind`` for one microbatch on one of the rank's two stages.

    ``chunk``: 0 for the rank's first stage, 1 for its second. ``index``: the number of microbatches
    that pass this chunk before the op's microbatch. ``overlaps``: whether the op runs at the same
    time as the next step; otherwise the next step runs after it.
    """

    kind: OpKind
    chunk: int
    index: int
    overlaps: bool = False


class DualPipeSteps:
    """The ops of one rank of DualPipe or DualPipeV in order, as a list in ``steps``.

    A microbatch passes ``turns`` ranks before it turns round or gets to the half of the ranks where
    the other direction enters; ``place`` is the position of this rank among these ranks, the first
    being 0. ``count``: the number of microbatches that pass each of the rank's two chunks.
    """

    def __init__(self, place: int, turns: int, count: int) -> None:
        self._passed: Counter[tuple[bool, int]] = Counter()  # by whether it is F, and chunk
        self._late: deque[DualPipeStep] = deque()
        self.steps: list[DualPipeStep] = []
        below = turns - 1 - place
        count = max(count, 2 * turns)
        self._enter(place, below)
        for i in range(count - turns - below):
            self._pair(forward=0, at_once=below > 0 or i > 0)
            self._pair(forward=1)
        for _ in range(below):
            self._backward(1)
            self._pair(forward=1)
        self._leave(place, below)

    def _enter(self, place: int, below: int) -> None:
        for _ in range(2 * below):
            self._forward(0)
        for _ in range(place + 1):
            self._forward(0)
            self._forward(1)
        for _ in range(below):
            self._backward(1, split=True)
            self._weight()
            self._forward(1)

    def _leave(self, place: int, below: int) -> None:
        for i in range(2 * (place + 1)):
            self._backward(1 - i % 2, split=i > place)
        for _ in range(below):
            self._weight()
            self._backward(0, split=True)
        while self._late:
            self._weight()

    def _pair(self, forward: int, at_once: bool = True) -> None:
        self._forward(forward, at_once)
        self._backward(1 - forward)

    def _forward(self, chunk: int, overlaps: bool = False) -> None:
        self.steps.append(DualPipeStep(OpKind.F, chunk, self._next(True, chunk), overlaps))

    def _backward(self, chunk: int, split: bool = False) -> None:
        index = self._next(False, chunk)
        self.steps.append(DualPipeStep(OpKind.B if split else OpKind.BW, chunk, index))
        if split:
            self._late.append(DualPipeStep(OpKind.W, chunk, index))

    def _weight(self) -> None:
        self.steps.append(self._late.popleft())

    def _next(self, forward: bool, chunk: int) -> int:
        self._passed[forward, chunk] += 1
        return self._passed[forward, chunk] - 1


def ops_and_pairs(
    steps: list[DualPipeStep],
    stages: tuple[int, int],
    microbatch: Callable[[int, int], int],
    count: int,
) -> Row:
    """Return the ops of a rank's ``steps``, and the positions where its pairs begin.

    A pair is an F and a BW that run at the same time; it begins with its F. ``stages``: the rank's
    first and second stage. ``microbatch``: a function of a chunk (0 or 1) and an index, which
    returns the number of the microbatch that passes this chunk as the ``index``-th (the first has
    index 0). ``count``: the number of microbatches; steps whose microbatch has a number of
    ``count`` or more are left out.
    """
    ops: list[Op] = []
    pairs = []
    whole = False  # whether the previous step exists and overlaps with this one
    for step in steps:
        number = microbatch(step.chunk, step.index)
        there = number < count
        if there and whole:
            pairs.append(len(ops) - 1)
        if there:
            ops.append(Op(step.kind, stages[step.chunk], number))
        whole = there and step.overlaps
    return ops, tuple(pairs)


def overlapped(problem: Problem, rows: list[Row], name: str) -> Schedule:
    """Return the timed schedule with the given ops and pairs of each rank.

    ``rows``: for each rank, its ops and the positions of its pairs. The F and the BW of a pair run
    at the same time if the profile has the times of pairs, otherwise one after the other. ``name``:
    the family's name.
    """
    pairs = tuple(pairs for _, pairs in rows) if problem.profile.pairs_known else ()
    return finished(problem, [ops for ops, _ in rows], name, pairs=pairs)
