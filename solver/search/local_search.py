"""Simulated annealing of the order of ops on all ranks, in rounds.

The length of a round is counted in ops, not in seconds. So for a given seed all machines run the
same rounds, and only the number of rounds depends on the clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.model.ops import (
    KIND_MASK,
    IntArray,
    OpKind,
    offsets_of,
    split_backwards,
)
from pipeloom.ir.model.problem import Objective, Problem

from ..core.incumbent import Incumbent
from ..core.kernels import CostArrays, seeded
from ..core.methods import Method
from ..core.options import Order
from .kernels.annealing import anneal
from .kernels.forward import is_pair
from .kernels.lists import Filling, Lists, PairTimes, Remat

FORWARD_OP = 3  # work per op, in simulated ops, if orders are timed by :mod:`.kernels.forward`
SLICES = 4  # pieces of a round, each with its own range of temperatures
HOTTEST = -2.0, -0.5  # range of log10 of a round's first temperature, in mean op times
COLD = 0.03  # last temperature of a round, relative to the first

Heat: TypeAlias = tuple[float, float]
"""The first and the last temperature of a sequence of moves, in units of cost."""


def cooled(hot: float, pieces: int = SLICES) -> Iterator[Heat]:
    """Return the first and the last temperature of each piece of a round, as pairs.

    The first piece begins at ``hot``. The temperatures fall geometrically, to ``hot`` times
    :data:`COLD` at the end of the round.
    """
    return pairwise(hot * COLD ** (piece / pieces) for piece in range(pieces + 1))


class Annealer:
    """Simulated annealing that starts each round from the best order.

    Each round draws its first temperature and the maximum distance of its moves at random.
    ``method``: the label with which orders are offered. ``op``: the effort to time one op, in
    simulated ops. ``slices``: the effort of each of the :data:`SLICES` pieces of a round, in
    multiples of :attr:`Incumbent.slice`.
    """

    method, op, slices = Method.ANNEAL, 1, 1.0

    def __init__(self, problem: Problem, rng: np.random.Generator) -> None:
        self._problem, self._rng, self._state = problem, rng, seeded(rng)
        self._costs = CostArrays.of(Costs.of(problem))
        self._makespan = problem.objective is Objective.MAKESPAN
        self._unit = float(self._costs.durations[:3].mean())

    @property
    def able(self) -> bool:
        return self._unit > 0.0

    def round(self, best: Incumbent) -> None:
        rows = tuple(map(split_backwards, best.found()[0]))
        self._anneal(best, np.concatenate(rows), offsets_of(rows))

    def _anneal(  # noqa: PLR0917
        self,
        best: Incumbent,
        order: IntArray,
        offsets: IntArray,
        remat: Remat | None = None,
        filling: Filling | None = None,
        pairs: PairTimes | None = None,
        least: float | None = None,
    ) -> None:
        """Run one round of annealing on ``order``, which is changed in place.

        ``order``: the packed ops of all ranks in one array; ``offsets``: where each rank's ops
        begin, (P + 1,). ``remat``, ``filling`` and ``pairs`` select the moves and the evaluator
        (:func:`.kernels.annealing.anneal`). ``least``: only orders that cost less than this are
        offered to ``best``; None means the cost of ``best``.
        """
        least = best.cost if least is None else least
        hot = self._unit * 10 ** self._rng.uniform(*HOTTEST)
        reach = int(self._rng.choice((3, 8, 20)))
        found = order.copy() if filling is None else filling.order.copy()
        work = self.op * len(found)
        moves = max(100, int(self.slices * best.slice // work))
        lists = Lists.of(order, offsets, len(found), self._costs, reach, self._state)
        for heat in cooled(hot):
            cost = anneal(
                lists, remat, filling, pairs, found, least, self._makespan, *heat, moves,
                best.interrupt.flag,
            )  # fmt: skip
            best.work.spend(moves * work)
            if cost < least:
                least = cost
                ends = offsets[1:] if remat is None else remat.best_stop
                self._offer(best, found, offsets if filling is None else 3 * offsets // 2, ends)
            if best.over():
                return

    def _offer(self, best: Incumbent, order: IntArray, offsets: IntArray, _: IntArray) -> None:
        """Offer ``order``, the packed ops of all ranks, to ``best``.

        ``offsets``: where each rank's ops begin in ``order``, (P + 1,). The last argument, (P,), is
        where each rank's ops end; only subclasses use it.
        """
        best.offer(by_rank(order, offsets), self.method)


class FillingAnnealer(Annealer):
    """Simulated annealing of only the F's and B's of the best order.

    W's are filled in between them when an order is timed.
    """

    method, op, slices = Method.FILL, FORWARD_OP, 0.5

    def round(self, best: Incumbent) -> None:
        rows = [split_backwards(row) for row in best.found()[0]]
        runs = [row[row & KIND_MASK != OpKind.W] for row in rows]
        order = np.concatenate(runs)
        patience = self._rng.uniform(0.1, 1.1, len(runs))
        offsets = offsets_of(runs)
        filling = Filling.of(patience, offsets, self._costs)
        self._anneal(best, order, offsets, filling=filling)


class PairAnnealer(Annealer):
    """Simulated annealing from the best order, with moves that make pairs.

    A pair is an F and a BW that run at the same time.
    """

    method = Method.PAIR

    def __init__(self, problem: Problem, rng: np.random.Generator) -> None:
        super().__init__(problem, rng)
        stages, time = range(problem.stages), problem.profile.pair_time
        self._times = np.array([[time(f, b) for b in stages] for f in stages])

    def round(self, best: Incumbent) -> None:
        rows = tuple(map(split_backwards, best.found()[0]))
        self._anneal(best, np.concatenate(rows), offsets_of(rows), pairs=self._times)

    def _offer(self, best: Incumbent, order: IntArray, offsets: IntArray, ends: IntArray) -> None:
        rows, pairs = [], []
        for first, stop in zip(offsets.tolist(), ends.tolist(), strict=False):
            places = range(first, stop)
            begins = [
                at for at in places if is_pair(order, at, stop, self._costs.durations, self._times)
            ]
            row, at = order[first:stop].copy(), np.array(begins, dtype=np.int64) - first
            row[at + 1] += OpKind.BW - OpKind.B
            pairs.append(tuple((at - np.arange(len(at))).tolist()))
            rows.append(np.delete(row, at + 2))
        best.offer(tuple(rows), self.method, pairs=tuple(pairs))


def by_rank(order: IntArray, offsets: IntArray) -> Order:
    """Split one array with the packed ops of all ranks into one array per rank.

    ``offsets``: where each rank's ops begin, (P + 1,).
    """
    return tuple(np.split(order, offsets[1:-1]))
