"""Local search on the parameters of the constructive heuristics for one stage per rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from pipeloom.ir.model.problem import Objective

from ..construct.linear import Constructor, HeuristicParameters
from ..construct.list_scheduler_linear import LinearListParameters, tune_linear_list
from ..construct.round_based import RoundParameters
from ..core.incumbent import Incumbent
from ..core.kernels import seeded
from ..core.methods import Method
from ..core.options import Order
from .local_search import cooled

POOL = 8  # number of best parameters that are kept
BUILD_OP, BUILD = 10, 20_000  # work to build an order, in simulated ops: per op, and fixed
LIST_OP = 3  # work per op of the list scheduler, in simulated ops

Tried: TypeAlias = tuple[float, HeuristicParameters]
"""The cost of the order that a constructor builds, and its parameters."""


def building(ops: int) -> int:
    """The work of building and timing an order of ``ops`` ops, in simulated ops."""
    return BUILD_OP * ops + BUILD


class RoundTuner:
    """Hill climbing on the parameters of the rounds (:mod:`..construct.round_based`).

    One to three parameters are changed a little, and kept if the cost is no higher. It is fast if
    orders are long, as one parameter moves ops on all ranks.
    """

    def __init__(
        self, constructor: Constructor, tried: Sequence[Tried], rng: np.random.Generator
    ) -> None:
        self._constructor = constructor
        pool = [(cost, each) for cost, each in tried if isinstance(each, RoundParameters)]
        self._pool = sorted(pool, key=lambda tried: tried[0])[:POOL]
        self._rng = rng
        ops = 3 * constructor.linear.stages * constructor.linear.microbatches
        self._build = building(ops)

    @property
    def able(self) -> bool:
        return bool(self._pool)

    def round(self, best: Incumbent) -> None:
        for _ in range(max(10, int(best.slice // self._build))):
            slot = int(self._rng.integers(len(self._pool)))
            best.work.spend(self._build)
            before, parameters = self._pool[slot]
            parameters = parameters.mutated(self._constructor.linear, self._rng)
            rows = self._constructor.build(parameters)
            if rows is None:
                continue
            cost = self._constructor.cost(rows)
            if cost <= before:
                self._pool[slot] = cost, parameters
            best.offer(rows, Method.ROUNDS, cost)
            if best.over():
                return


class LinearListTuner:
    """Simulated annealing of the list scheduler's parameters, including the gaps of microbatches.

    Each round starts from one of the best parameters so far. It is strong if memory holds fewer
    microbatches than there are stages.
    """

    def __init__(
        self,
        constructor: Constructor,
        tried: Sequence[Tried],
        rng: np.random.Generator,
        objective: Objective,
    ) -> None:
        self._constructor, self._rng = constructor, rng
        self._pool: list[tuple[float, LinearListParameters]] = []
        for cost, parameters in sorted(tried, key=lambda tried: tried[0]):
            if isinstance(parameters, LinearListParameters):
                self._keep(cost, parameters)
        self._makespan = objective is Objective.MAKESPAN
        self._state = seeded(rng)
        c = constructor.linear
        self._unit = float((c.f + c.b + c.down + c.up).mean())

    @property
    def able(self) -> bool:
        return bool(self._pool) and self._unit > 0.0

    def round(self, best: Incumbent) -> None:
        parameters = self._pool[int(self._rng.integers(len(self._pool)))][1].copy()
        linear = self._constructor.linear
        order = np.empty((linear.stages, 3 * linear.microbatches), dtype=np.int64)
        moves = max(10, int(best.slice // (LIST_OP * order.size)))
        hot = self._unit * 10 ** self._rng.uniform(-2.5, 0.0)
        for heat in cooled(hot):
            cost = tune_linear_list(
                linear, parameters, self._makespan, order, best.cost, self._unit, *heat,
                moves, self._state, best.interrupt.flag,
            )  # fmt: skip
            best.work.spend(moves * LIST_OP * order.size)
            if cost < best.cost:
                self._offer(best, self._constructor.by_rank(order.copy()))
            if best.over():
                return
        rows = self._constructor.build(parameters)
        if rows is not None:
            self._keep(self._offer(best, rows), parameters)

    def _offer(self, best: Incumbent, rows: Order) -> float:
        """Offer an order; returns its cost, below the kernel's if a gap was longer than needed."""
        cost = self._constructor.cost(rows)
        best.offer(rows, Method.LIST, cost)
        return cost

    def _keep(self, cost: float, parameters: LinearListParameters) -> None:
        """Add the parameters to the pool if they are among the best; one for each cost."""
        if all(abs(cost - other) > 1e-9 * cost for other, _ in self._pool):
            self._pool = sorted([*self._pool, (cost, parameters)], key=lambda kept: kept[0])[:POOL]
