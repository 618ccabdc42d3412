"""From a schedule to one of more microbatches, or of fewer: a piece of it run again, or left out.

Cut a schedule at some moment. Of each class, a kind of op of a stage (and of a direction), some
first ops have started; the *piece* of period d are the next d of each. Every rank runs its piece
once more before it goes on, its ops in the order in which it has them; in what follows microbatches
are d further on (here d = 1)::

    M' = 3  F0 F1 B0 W0|F2 B1 W1 B2 W2
    M  = 4  F0 F1 B0 W0|F2 B1 W1|F3 B2 W2 B3 W3

Wherever the cut is, such an order can run. Ops of a class are named in the order in which they run
(:func:`..core.streams.by_turns`). Sort all ops by what they belong to, the ops before the cut, the
copies of the piece, the rest, then by when the op that they are copied from starts; of those that
start at once what another one needs comes first. Each rank's order is a part of that, and every op
comes behind those that it needs: of their classes no fewer have started at the cut than of its own,
so that they are before the cut if it is, and no later than in the same copy if it is in one; where
both belong to the same they are copied from one microbatch. It is the same with the piece left out.
At both ends of a piece ranks hold what they hold at the cut, and within it as much in each copy:
whether memory has room is asked of the simulator for one. A piece that takes as long as d
microbatches' work runs again and again at no loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from math import inf
from typing import NamedTuple

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.cost.simulator import Simulator
from pipeloom.ir.kernels import kernel
from pipeloom.ir.model.ops import CLASS_MASK, MICROBATCH_SHIFT, IntArray, offsets_of
from pipeloom.ir.model.problem import Problem

from ..core.options import Order
from ..core.stopping import Budget
from ..core.streams import by_turns, class_of, stream_numbers, streams_of
from ..core.tolerances import ROUNDING

CUTS = 48  # that are tried for each period
LONGEST = 24  # period, in microbatches of a stream
BUILT = 4  # simulated ops that building and timing an op takes as long as


class Splice(NamedTuple):
    """``cost``: of each microbatch that it adds, or takes away."""

    cut: IntArray
    period: int
    cost: float


class Splices:
    """The orders that pieces of ``order`` make, run again or left out.

    ``problem`` has the order's microbatches: all alike, as many in each stream, neither recomputed
    nor offloaded. ``streams``: how many there are.
    """

    def __init__(
        self, problem: Problem, order: Order, rng: np.random.Generator, cuts: int = CUTS
    ) -> None:
        self.problem, self.order = problem, by_turns(problem, order)
        self._rng, self._number = rng, cuts
        self._flat, self._offsets = np.concatenate(self.order), offsets_of(self.order)
        simulator = Simulator(problem, self._offsets)
        self.cost, self._start = simulator.cost(self._flat), simulator.start
        self.streams = len(streams_of(problem))
        self._count = problem.microbatches // self.streams
        of_class = class_of(stream_numbers(problem), self._flat)
        self._stream = of_class >> MICROBATCH_SHIFT
        classes, self._class = np.unique(of_class, return_inverse=True)
        self._classes, self._turn = len(classes), np.empty_like(self._flat)
        turns = np.tile(np.arange(self._count), self._classes)
        self._turn[np.argsort(self._class, kind="stable")] = turns

    @cached_property
    def cuts(self) -> list[IntArray]:
        """How many ops of each class have started, at some moments."""
        moments = self._rng.choice(self._start, self._number)
        started = (self._start <= moment for moment in moments)
        return [np.bincount(self._class[ops], minlength=self._classes) for ops in started]

    def periods(self, most: int) -> list[int]:
        """The periods of pieces, in microbatches of all streams, up to ``most``."""
        longest = min(self._count // 2, most // self.streams, LONGEST)
        return [d * self.streams for d in range(1, longest + 1)]

    def best(self, periods: Sequence[int], copies: int, budget: Budget) -> Splice | None:
        """The piece of these periods that costs least a microbatch with so many more copies; with
        -1 the one that saves most. None where memory holds none, or none was tried in time."""
        found, least = None, inf
        for period in periods:
            d = period // self.streams
            added = copies * period
            longer = replace(self.problem, microbatches=self.problem.microbatches + added)
            judge = Judge(longer, self._offsets // self.problem.microbatches)
            names = np.array(streams_of(longer))
            for cut in self.cuts:
                if budget():
                    return found
                if int(cut.max()) + d > self._count:
                    continue
                budget.work.spend(BUILT * len(self._flat))
                order, _ = self._spliced(cut, d, copies, names)
                cost = (judge.cost(order) - self.cost) / added
                if copies * cost < least:
                    found, least = Splice(cut, period, cost), copies * cost
        return found

    def spliced(self, cut: IntArray, period: int, copies: int) -> Order:
        """The order with so many more copies of the piece, or without it: -1."""
        microbatches = self.problem.microbatches + copies * period
        names = np.array(streams_of(replace(self.problem, microbatches=microbatches)))
        flat, ends = self._spliced(cut, period // self.streams, copies, names)
        return tuple(np.split(flat, ends[:-1]))

    def _spliced(
        self, cut: IntArray, turns: int, copies: int, names: IntArray
    ) -> tuple[IntArray, IntArray]:
        """The order with ``turns`` of each class in a piece, flat, and where ranks end; ``names``:
        its microbatches by stream and turn."""
        size = len(self._flat) // self._count * names.shape[1]
        source, turn = np.empty((2, size), dtype=np.int64)
        ends = _splice(self._offsets, self._class, self._turn, cut, turns, copies, source, turn)
        flat = self._flat[source] & CLASS_MASK
        flat += names[self._stream[source], turn] << MICROBATCH_SHIFT
        return flat, ends


class Judge:
    """The cost of flat orders of a problem's ops; ``offsets``: those of one microbatch's."""

    def __init__(self, problem: Problem, offsets: IntArray) -> None:
        self._simulator = Simulator(problem, offsets * problem.microbatches)
        self._limit = Costs.of(problem).limit * (1 + ROUNDING)

    def cost(self, order: IntArray) -> float:
        """Infinite where memory does not hold it."""
        cost = self._simulator.cost(order)
        return cost if bool((self._simulator.peak <= self._limit).all()) else inf


def lengthened(
    problem: Problem, order: Order, fewer: int, rng: np.random.Generator, budget: Budget
) -> Order | None:
    """An order of all microbatches from one of ``fewer``, by pieces that cost least; None where
    memory holds none, or it takes too long."""
    while fewer < problem.microbatches:
        splices = Splices(replace(problem, microbatches=fewer), order, rng)
        periods = rng.permutation(splices.periods(problem.microbatches - fewer))
        piece = splices.best(periods.tolist(), 1, budget)
        if piece is None:
            return None
        copies = (problem.microbatches - fewer) // piece.period
        order = splices.spliced(piece.cut, piece.period, copies)
        fewer += copies * piece.period
    return order


@kernel
def _splice(  # noqa: PLR0917
    offsets: IntArray,
    of_class: IntArray,
    turns: IntArray,
    cut: IntArray,
    period: int,
    copies: int,
    source: IntArray,
    turn: IntArray,
) -> IntArray:
    """Writes which op each op is copied from, and its turn; returns where ranks end."""
    at, ends = 0, np.empty(len(offsets) - 1, np.int64)
    for rank in range(len(offsets) - 1):
        for part in range(-1, max(copies, 0) + 1):  # before the cut, the copies, the rest
            rest = part == max(copies, 0)
            for op in range(offsets[rank], offsets[rank + 1]):
                k = turns[op] - cut[of_class[op]]
                if part == -1:
                    taken = k < 0
                elif rest:
                    taken = k >= (period if copies < 0 else 0)
                else:
                    taken = 0 <= k < period
                if taken:
                    source[at] = op
                    turn[at] = turns[op] + (0 if part < 0 else period * (copies if rest else part))
                    at += 1
        ends[rank] = at
    return ends
