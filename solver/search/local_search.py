"""Simulated annealing of orders, in rounds.

The length of a round is counted in ops, not in seconds. So for a given seed all machines run the
same rounds; only their number depends on the clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.model.ops import KIND_MASK, IntArray, OpKind, offsets_of, split_backwards
from pipeloom.ir.model.problem import Objective, Problem

from ..core.incumbent import Incumbent
from ..core.kernels import CostArrays, seeded
from ..core.methods import Method
from ..core.options import Order
from .kernels.annealing import anneal_kernel
from .kernels.filling import anneal_filled
from .kernels.remat_moves import RematState

FILLING_OP = 3  # work per op, in simulated ops, if W's are filled in
SLICES = 4  # pieces of a round, each with a range of temperatures
HOTTEST = -2.0, -0.5  # range of log10 of a round's first temperature, in mean op times
COLD = 0.03  # last temperature of a round, relative to the first

Heat: TypeAlias = tuple[float, float]
"""The first and the last temperature of a sequence of moves, in units of cost."""


def cooled(hot: float, pieces: int = SLICES) -> Iterator[Heat]:
    """The temperatures of each piece of a round that begins at ``hot``."""
    return pairwise(hot * COLD ** (piece / pieces) for piece in range(pieces + 1))


class OrderAnnealer:
    """Simulated annealing of orders; each round draws its temperature and reach."""

    def __init__(self, problem: Problem, rng: np.random.Generator) -> None:
        self._costs, self._rng, self._state = Costs.of(problem), rng, seeded(rng)
        self._arrays = CostArrays.of(self._costs)
        self._makespan = problem.objective is Objective.MAKESPAN
        self._unit = float(self._costs.durations[:3].mean())

    @property
    def able(self) -> bool:
        return self._unit > 0.0

    def _draw(self) -> tuple[float, int]:
        """The first temperature of a round, and the largest distance of a move."""
        hot = self._unit * 10 ** self._rng.uniform(*HOTTEST)
        return hot, int(self._rng.choice((3, 8, 20)))

    def _run(  # noqa: PLR0917
        self,
        best: Incumbent,
        order: IntArray,
        found: IntArray,
        cost: float,
        offsets: IntArray,
        remat: RematState | None,
        heat: Heat,
        moves: int,
        reach: int,
    ) -> float:
        """Run :func:`.kernels.annealing.anneal_kernel` on this problem."""
        return anneal_kernel(
            order, found, cost, offsets, self._arrays, remat, self._makespan, *heat, moves, reach,
            self._state, best.interrupt.flag,
        )  # fmt: skip


class Annealer(OrderAnnealer):
    """Simulated annealing from the best order."""

    def round(self, best: Incumbent) -> None:
        assert best.order is not None
        hot, reach = self._draw()
        rows = tuple(map(split_backwards, best.order))
        offsets, order = offsets_of(rows), np.concatenate(rows)
        moves = max(100, int(best.slice // len(order)))
        for heat in cooled(hot):
            found = order.copy()
            best.work.spend(moves * len(order))
            cost = self._run(best, order, found, best.cost, offsets, None, heat, moves, reach)
            best.offer(by_rank(found, offsets), Method.ANNEAL, cost)
            if best.over():
                return


class FillingAnnealer(OrderAnnealer):
    """Simulated annealing of the F's and B's of the best order; W's are filled in between."""

    def round(self, best: Incumbent) -> None:
        assert best.order is not None
        hot, reach = self._draw()
        rows = tuple(map(split_backwards, best.order))
        offsets, found = offsets_of(rows), np.concatenate(rows)
        runs = found[found & KIND_MASK != OpKind.W]
        moves = max(100, int(best.slice // (2 * FILLING_OP * len(found))))
        fill = self._rng.uniform(0.1, 1.1, len(rows))
        for heat in cooled(hot):
            best.work.spend(FILLING_OP * moves * len(found))
            cost = anneal_filled(
                runs, found, best.cost, 2 * offsets // 3, self._arrays, fill, self._makespan, *heat,
                moves, reach, self._state, best.interrupt.flag,
            )  # fmt: skip
            if cost < best.cost:
                best.offer(by_rank(found, offsets), Method.FILL, cost)
            if best.over():
                return


def by_rank(order: IntArray, offsets: IntArray) -> Order:
    """Split a flat order into one array per rank."""
    return tuple(np.split(order, offsets[1:-1]))
