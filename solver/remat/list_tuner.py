"""Search for the parameters of the list scheduler with recomputation."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.cost.remat import RECOMPUTED
from pipeloom.ir.model.ops import IntArray, OpKind
from pipeloom.ir.model.problem import Objective, Problem

from ..construct.list_scheduler_remat import (
    RematListParameters,
    WholeRemat,
    remat_list_schedule,
    tune_remat_list,
)
from ..core.incumbent import Incumbent
from ..core.kernels import seeded
from ..core.linear_instance import LinearInstance
from ..core.options import Order
from ..core.relaxations import plain, recomputable
from ..search.local_search import COLD

LIST_OP = 3  # work to build an op of an order, in simulated ops
# random parameters of which the best are annealed; number of best that are kept
DRAWN, POOL = 30, 6


class RematListTuner:
    """Simulated annealing of the parameters.

    A round starts from the best of some random ones, or from one of the best so far.
    """

    def __init__(self, problem: Problem, linear: LinearInstance, rng: np.random.Generator) -> None:
        self._problem, self._linear, self._rng = problem, linear, rng
        costs = Costs.of(problem)
        self._remat = WholeRemat(costs.durations[OpKind.R], costs.kept[RECOMPUTED])
        self._pool: list[tuple[float, RematListParameters]] = []
        self._order = np.empty((linear.stages, 4 * linear.microbatches), dtype=np.int64)
        self._number = np.empty(linear.stages, dtype=np.int64)
        self._unit = float((linear.f + linear.b + linear.down + linear.up).mean())
        self._makespan = problem.objective is Objective.MAKESPAN
        self._state = seeded(rng)
        self._build = LIST_OP * self._order.size

    @classmethod
    def of(cls, problem: Problem, rng: np.random.Generator) -> RematListTuner | None:
        """None if a rank has several stages, or nothing can or need be recomputed."""
        linear = LinearInstance.of(plain(problem))
        able = linear is not None and problem.limited and bool(recomputable(problem).any())
        return cls(problem, linear, rng) if able and linear is not None else None

    def first(self) -> Iterator[Order]:
        """Yield the order of the best of some random parameters, if it is complete."""
        if np.isfinite(self._cost(self._drawn())):
            yield tuple(self._rows())

    def round(self, best: Incumbent) -> Iterator[Order]:
        """Yield the best order of a round, if any was found."""
        pool = self._pool
        new = len(pool) < POOL // 2 or self._rng.random() < 0.3
        parameters = self._drawn() if new else pool[self._rng.integers(len(pool))][1].copy()
        best.work.spend(self._build * DRAWN * new)
        hot = self._unit * 10 ** self._rng.uniform(-1.5, 0.0)
        moves = max(10, int(4 * best.slice // self._build))
        cost, reached = tune_remat_list(
            self._linear, self._remat, parameters, self._makespan, self._order, self._number,
            np.inf, self._unit, hot, hot * COLD, moves, self._state, best.interrupt.flag,
        )  # fmt: skip
        best.work.spend(self._build * moves)
        if np.isfinite(reached):
            pool.append((reached, parameters))
            pool.sort(key=lambda known: known[0])
            del pool[POOL:]
        if np.isfinite(cost):
            yield tuple(self._rows())

    def _drawn(self) -> RematListParameters:
        """The best of some random parameters."""
        drawn = [RematListParameters.drawn(self._linear, self._rng) for _ in range(DRAWN)]
        return min(drawn, key=self._cost)

    def _cost(self, parameters: RematListParameters) -> float:
        shape = self._linear.stages, self._linear.microbatches
        scratch = np.empty(shape), np.empty(shape), np.empty(shape, dtype=np.int8)
        found, _ = remat_list_schedule(
            self._linear, self._remat, parameters, self._makespan, self._order, self._number,
            *scratch,
        )  # fmt: skip
        return float(found)

    def _rows(self) -> Iterator[IntArray]:
        stages = {rank: i for i, rank in enumerate(self._linear.ranks.tolist())}
        for rank in range(self._problem.ranks):
            i = stages.get(rank)
            empty = np.empty(0, dtype=np.int64)
            yield empty if i is None else self._order[i, : self._number[i]].copy()
