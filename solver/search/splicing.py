"""Extend or shorten a schedule by repeating or removing one piece of it.

Cut a schedule at some time. A *class* is all ops of one kind and stage (and direction). At the cut,
some first ops of each class have started. The *piece* of period d consists of the next d ops of
each class. To extend the schedule, every rank runs the ops of its piece once more, in their order,
before it continues; in all ops from there on, microbatches are numbered d higher (here d = 1)::

    M' = 3  F0 F1 B0 W0|F2 B1 W1 B2 W2
    M  = 4  F0 F1 B0 W0|F2 B1 W1|F3 B2 W2 B3 W3

Claim: for every cut, the new order can run. Ops of a class are numbered in the order in which they
run (:func:`..core.streams.by_turns`). Proof: sort all ops first by their part (before the cut, the
first copy of the piece, the second, ..., the rest), then by the start of the op that they are
copied from; if starts are equal, an op comes after those that it depends on. Each rank's order is a
subsequence of this. Moreover, every op x comes after each op y that it depends on: when x's
original started, y's had, so at the cut at least as many ops of y's class have started as of x's.
So y is before the cut if x is, and otherwise y is in no later copy than x. If x and y are in the
same part, they are copied from the same microbatch. The same holds if the piece is removed.

At both ends of a piece the ranks hold the same memory as at the cut, and each copy of it needs as
much memory as the others. Whether that fits is simulated for one copy. If a piece takes as long as
the work of d microbatches, it can be repeated any number of times without additional idle time.
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

CUTS = 48  # number of cuts tried for each period
LONGEST = 24  # longest period, in microbatches of a stream
BUILT = 4  # work to build and time an op, in simulated ops


class Splice(NamedTuple):
    """A piece of a schedule: the next ops of each class after a cut in time.

    A class is all ops of one kind, stage and stream (direction of microbatches). ``cut``: the
    number of ops of each class that are before the piece, (number of classes,). ``period``: the
    number of microbatches, over all streams, whose ops are in the piece. ``cost``: by how much the
    cost of the schedule rises per microbatch added or, if the piece is removed, falls per
    microbatch removed.
    """

    cut: IntArray
    period: int
    cost: float


class Splices:
    """An order, and the pieces of it that can be repeated or removed to make other orders.

    ``problem``: the problem that ``order`` solves. Its microbatches must be equal, equally many in
    each stream (direction), and neither recomputed nor offloaded. ``cuts``: the number of random
    cuts to try. ``streams``: the number of streams.
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
        """The cuts to try, each at a random time.

        A cut is an array: for each class, the number of its ops that have started by that time,
        (number of classes,).
        """
        moments = self._rng.choice(self._start, self._number)
        started = (self._start <= moment for moment in moments)
        return [np.bincount(self._class[ops], minlength=self._classes) for ops in started]

    def periods(self, most: int) -> list[int]:
        """Return the numbers of microbatches that a piece may have, ascending, at most ``most``."""
        longest = min(self._count // 2, most // self.streams, LONGEST)
        return [d * self.streams for d in range(1, longest + 1)]

    def best(self, periods: Sequence[int], copies: int, budget: Budget) -> Splice | None:
        """Return the piece that adds the least cost per microbatch if it is added ``copies`` times.

        With ``copies`` = -1, return the piece whose removal saves the most cost per microbatch.
        ``periods``: the numbers of microbatches that the piece may have. Once the budget is used
        up, the best piece tried so far is returned. Returns None if none of the pieces tried fits
        in memory.
        """
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
        """Return the order with ``copies`` more copies of a piece or, with -1, without the piece.

        ``cut``, ``period``: the piece, as in :class:`Splice`.
        """
        microbatches = self.problem.microbatches + copies * period
        names = np.array(streams_of(replace(self.problem, microbatches=microbatches)))
        flat, ends = self._spliced(cut, period // self.streams, copies, names)
        return tuple(np.split(flat, ends[:-1]))

    def _spliced(
        self, cut: IntArray, turns: int, copies: int, names: IntArray
    ) -> tuple[IntArray, IntArray]:
        """Return the order with ``copies`` more copies of a piece or, with -1, without the piece.

        The order is one array of packed ops, rank after rank; the second result is the position
        after each rank's last op, (P,). ``cut``: the number of ops of each class that are before
        the piece. ``turns``: the number of ops of each class in the piece. ``names``: the
        microbatches of the new order, by stream and position in the stream, (streams, microbatches
        per stream).
        """
        size = len(self._flat) // self._count * names.shape[1]
        source, turn = np.empty((2, size), dtype=np.int64)
        ends = _splice(self._offsets, self._class, self._turn, cut, turns, copies, source, turn)
        flat = self._flat[source] & CLASS_MASK
        flat += names[self._stream[source], turn] << MICROBATCH_SHIFT
        return flat, ends


class Judge:
    """An evaluator that computes the cost of orders of ``problem``.

    The orders are given as one array of packed ops, rank after rank. ``offsets``: where each rank's
    ops would begin if there were only one microbatch, (P + 1,).
    """

    def __init__(self, problem: Problem, offsets: IntArray) -> None:
        self._simulator = Simulator(problem, offsets * problem.microbatches)
        self._limit = Costs.of(problem).limit * (1 + ROUNDING)

    def cost(self, order: IntArray) -> float:
        """Return the cost of an order, or infinity if the order does not fit in memory.

        ``order``: the packed ops of all ranks, rank after rank.
        """
        cost = self._simulator.cost(order)
        return cost if bool((self._simulator.peak <= self._limit).all()) else inf


def lengthened(
    problem: Problem, order: Order, fewer: int, rng: np.random.Generator, budget: Budget
) -> Order | None:
    """Return an order of all microbatches of ``problem``, made by repeating the cheapest pieces.

    ``order``: the order to extend. ``fewer``: its number of microbatches. Returns None if no piece
    fits in memory, or if the budget is used up before.
    """
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
    """Write, for each op of the new order, the op it is copied from and its microbatch's position.

    ``offsets``: where each rank's ops begin in the old order. ``of_class``, ``turns``: the class of
    each op of the old order, and its position in the class. ``cut``: the number of ops of each
    class that are before the piece. ``period``: the number of ops of each class in the piece.
    ``copies``: the number of further copies, or -1 to remove the piece. ``source``: out, for each
    op of the new order, the index in the old order of the op it is copied from. ``turn``: out, for
    each op of the new order, the position of its microbatch in its stream. Returns the position
    after each rank's last op in the new order, (P,).
    """
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
