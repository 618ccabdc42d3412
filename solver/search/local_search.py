"""Local search in rounds: over each constructor's parameters, and over the orders themselves.

A round does an amount of work that is counted in ops, not in seconds, so that a seed gives the same
rounds on every machine; only how many there are depends on the clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.model.ops import KIND_MASK, IntArray, OpKind, offsets_of, split_backwards
from pipeloom.ir.model.problem import Objective, Problem

from ..construct.entry_orders import entry_orders
from ..construct.linear import Constructor, HeuristicParameters
from ..construct.list_scheduler import (
    ListParameters,
    Stages,
    list_parameters,
    list_schedule,
    tune_list,
)
from ..construct.list_scheduler_linear import LinearListParameters, tune_linear_list
from ..construct.round_based import RoundParameters
from ..core.incumbent import Incumbent
from ..core.kernel_rng import seeded
from ..core.options import Order
from ..core.tolerances import ROUNDING
from ..core.unlike import typical
from ..core.worker_threads import Pieces
from .kernels.annealing import anneal_kernel
from .kernels.filling import anneal_filled
from .kernels.remat_moves import RematState

POOL = 8  # parameters that are tuned side by side
SLICE = 10_000_000  # ops that are simulated between two looks at the clock, about 0.2 s
BUILD_OP, BUILD = 10, 20_000  # simulated ops that building an order counts, an op and in all
LINEAR_LIST_OP, LIST_OP = 3, 5  # the same of a list scheduler; in general for each stage of a rank
FILLING_OP = 3  # simulated ops that an op counts whose order has W's filled in
SLICES = 4  # in a round of annealing
FRESH = 4  # random parameters of the general list scheduler that fill its pool
DRAWN = 10  # random parameters of which the best are annealed
NEAR = 1.01  # multiple of the best cost that its own best may be for it to go on
COLD = 0.03  # the last temperature of a round, in units of the first


@dataclass(frozen=True, slots=True, eq=False)
class TriedParameters:
    """Parameters and the cost of the order that their constructor makes."""

    cost: float
    parameters: HeuristicParameters


def building(ops: int) -> int:
    """The simulated ops that building and timing one order counts."""
    return BUILD_OP * ops + BUILD


class RoundTuner:
    """Hill climbing on the parameters of the rounds: a few are changed a little, and kept if no
    worse. Fast where orders are long: one number moves ops on all ranks at once.
    """

    def __init__(
        self, constructor: Constructor, tried: Sequence[TriedParameters], rng: np.random.Generator
    ) -> None:
        self._constructor = constructor
        pool = [(t.cost, t.parameters) for t in tried if isinstance(t.parameters, RoundParameters)]
        self._pool = sorted(pool, key=lambda tried: tried[0])[:POOL]
        self._rng = rng
        ops = 3 * constructor.linear.stages * constructor.linear.microbatches
        self._build = building(ops)
        self._builds = max(10, SLICE // self._build)

    @property
    def able(self) -> bool:
        return bool(self._pool)

    def round(self, best: Incumbent) -> None:
        for _ in range(self._builds):
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
            best.offer(rows, "search", cost)
            if best.over():
                return


class LinearListTuner:
    """Anneals the parameters of the list scheduler, the space between microbatches among them.

    Each round starts from one of the best so far. Strong where memory holds fewer
    microbatches than there are stages.
    """

    def __init__(
        self,
        constructor: Constructor,
        tried: Sequence[TriedParameters],
        rng: np.random.Generator,
        objective: Objective,
        ops: int = SLICE,
    ) -> None:
        self._constructor, self._rng = constructor, rng
        self._pool: list[tuple[float, LinearListParameters]] = []
        for each in sorted(tried, key=lambda tried: tried.cost):
            if isinstance(each.parameters, LinearListParameters):
                self._keep(each.cost, each.parameters)
        self._makespan = objective is Objective.MAKESPAN
        self._state = seeded(rng)
        c = constructor.linear
        self._unit = float((c.f + c.b + c.down + c.up).mean())
        self._moves = max(10, ops // (LINEAR_LIST_OP * 3 * c.stages * c.microbatches))

    @property
    def able(self) -> bool:
        return bool(self._pool) and self._unit > 0.0

    def round(self, best: Incumbent) -> None:
        parameters = self._pool[int(self._rng.integers(len(self._pool)))][1].copy()
        linear = self._constructor.linear
        order = np.empty((linear.stages, 3 * linear.microbatches), dtype=np.int64)
        hot = self._unit * 10 ** self._rng.uniform(-2.5, 0.0)
        for piece in range(SLICES):
            cost = tune_linear_list(
                *linear.arrays, linear.capacity, parameters.warm, parameters.defer,
                parameters.fill, parameters.patience, parameters.gap, self._makespan, order,
                best.cost, self._unit, hot * COLD ** (piece / SLICES),
                hot * COLD ** ((piece + 1) / SLICES), self._moves, self._state,
                best.interrupt.flag,
            )  # fmt: skip
            best.work.spend(self._moves * LINEAR_LIST_OP * order.size)
            if cost < best.cost:
                self._offer(best, self._constructor.by_rank(order.copy()))
            if best.over():
                return
        rows = self._constructor.build(parameters)
        if rows is not None:
            self._keep(self._offer(best, rows), parameters)

    def _offer(self, best: Incumbent, rows: Order) -> float:
        """Offers an order; returns its cost, below the kernel's where a gap was not needed."""
        cost = self._constructor.cost(rows)
        best.offer(rows, "search", cost)
        return cost

    def _keep(self, cost: float, parameters: LinearListParameters) -> None:
        """Takes the parameters into the pool if they are among the best, one of each cost."""
        if all(abs(cost - other) > 1e-9 * cost for other, _ in self._pool):
            self._pool = sorted([*self._pool, (cost, parameters)], key=lambda kept: kept[0])[:POOL]


class ListTuner:
    """Anneals the parameters of the list scheduler for any map of stages to ranks.

    Each round starts at random, or from one of the best so far. It gives up where some rounds have
    come nowhere near the best schedule there is.
    """

    def __init__(self, problem: Problem, rng: np.random.Generator, ops: int = SLICE) -> None:
        self._rounds, self._near = 0, True
        self._stages, self._rng = Stages.of(problem), rng
        self._makespan = problem.objective is Objective.MAKESPAN
        entries = tuple(entry_orders(problem)) if problem.profile.unlike else ()
        self._settings = list_parameters(Stages.of(typical(problem)), rng, entries)
        self._pool: list[tuple[float, ListParameters]] = []
        self._state = seeded(rng)
        each, stages = self._stages.names.shape[1], len(self._stages.f)
        self._unit = float(self._stages.work.max()) / each
        size = 3 * stages * each
        self._order, self._found = np.empty((2, size), dtype=np.int64)
        self._ends = np.empty((2, stages, each))
        self._spans = np.empty(problem.ranks)
        self._offsets = 3 * each * self._stages.offsets
        self._move = LIST_OP * size * max(1, stages // problem.ranks)
        self._moves = max(10, ops // self._move)

    @property
    def able(self) -> bool:
        return self._unit > 0.0 and (self._near or self._rounds < FRESH)

    def round(self, best: Incumbent) -> None:
        self._rounds += 1
        new = len(self._pool) < FRESH or self._rng.random() < 1 / FRESH
        parameters = self._draw(best) if new else self._pooled()
        hot = self._unit * (0.5 if new else 10 ** self._rng.uniform(-2.0, 0.0))
        cost = float("inf")
        for piece in range(1 if new else SLICES):
            found, cost = tune_list(
                self._stages, parameters, self._makespan, self._found, best.cost,
                hot * COLD ** (piece / SLICES), hot * COLD ** ((piece + 1) / SLICES), self._moves,
                self._order, self._ends, self._spans, self._state, best.interrupt.flag,
            )  # fmt: skip
            best.work.spend(self._moves * self._move)
            if found < best.cost:
                best.offer(by_rank(self._found, self._offsets), "search")
            if best.over():
                return
        if np.isfinite(cost):
            self._pool = sorted([*self._pool, (cost, parameters)], key=lambda kept: kept[0])[:FRESH]
        self._near = bool(self._pool) and self._pool[0][0] <= best.cost * NEAR

    def pieces(self, best: Incumbent) -> Pieces:
        """The rounds that fill the pool, and one from its best.

        They come before orders are annealed: where no family fits the placement, these schedules
        are far better.
        """
        while self.able and self._rounds <= FRESH:
            self.round(best)
            yield

    def first(self, best: Incumbent) -> None:
        if np.isfinite(self._cost(self._draw(best))):
            best.offer(by_rank(self._order, self._offsets), "search")

    def _pooled(self) -> ListParameters:
        return self._pool[int(self._rng.integers(len(self._pool)))][1].copy()

    def _draw(self, best: Incumbent) -> ListParameters:
        """The best of some random parameters."""
        drawn = list(islice(self._settings, DRAWN))
        best.work.spend(DRAWN * self._move)
        return min(drawn, key=self._cost)

    def _cost(self, parameters: ListParameters) -> float:
        return list_schedule(
            self._stages, parameters, self._makespan, self._order, self._ends, self._spans
        )


class OrderAnnealer:
    """Simulated annealing of orders, each round with a temperature and a reach of its own."""

    def __init__(self, problem: Problem, rng: np.random.Generator) -> None:
        self._costs, self._rng, self._state = Costs.of(problem), rng, seeded(rng)
        self._makespan = problem.objective is Objective.MAKESPAN
        self._unit = float(self._costs.durations[:3].mean())

    @property
    def able(self) -> bool:
        return self._unit > 0.0

    def _draw(self, hottest: float) -> tuple[float, int]:
        """The first temperature of a round, and its reach."""
        hot = self._unit * 10 ** self._rng.uniform(-3.0, hottest)
        return hot, int(self._rng.choice((3, 8, 20)))

    def _run(  # noqa: PLR0917
        self,
        best: Incumbent,
        order: IntArray,
        found: IntArray,
        cost: float,
        offsets: IntArray,
        remat: RematState | None,
        heat: tuple[float, float],
        moves: int,
        reach: int,
    ) -> float:
        """The kernel on this problem; see :func:`.kernels.annealing.anneal_kernel`."""
        c = self._costs
        return anneal_kernel(
            order, found, cost, offsets, c.durations, c.owner, c.into_f, c.into_b, c.m_b, c.m_w,
            c.limit * (1 + ROUNDING), remat, self._makespan, *heat, moves, reach, self._state,
            best.interrupt.flag,
        )  # fmt: skip


class Annealer(OrderAnnealer):
    """Simulated annealing from the best order."""

    def round(self, best: Incumbent) -> None:
        assert best.order is not None
        hot, reach = self._draw(-1.0)
        rows = tuple(map(split_backwards, best.order))
        offsets, order = offsets_of(rows), np.concatenate(rows)
        moves = max(100, SLICE // len(order))
        for piece in range(SLICES):
            found, warm = order.copy(), hot * COLD ** (piece / SLICES)
            heat = warm, warm * COLD ** (1 / SLICES)
            best.work.spend(moves * len(order))
            cost = self._run(best, order, found, best.cost, offsets, None, heat, moves, reach)
            best.offer(by_rank(found, offsets), "search", cost)
            if best.over():
                return


class FillingAnnealer(OrderAnnealer):
    """Simulated annealing from the F's and B's of the best order; W's fill the time between."""

    def round(self, best: Incumbent) -> None:
        assert best.order is not None
        hot, reach = self._draw(-0.5)
        rows = tuple(map(split_backwards, best.order))
        offsets, found = offsets_of(rows), np.concatenate(rows)
        runs = found[found & KIND_MASK != OpKind.W]
        moves = max(100, SLICE // (2 * FILLING_OP * len(found)))
        fill = self._rng.uniform(0.1, 1.1, len(rows))
        c = self._costs
        for piece in range(SLICES):
            warm = hot * COLD ** (piece / SLICES)
            best.work.spend(FILLING_OP * moves * len(found))
            cost = anneal_filled(
                runs, found, best.cost, 2 * offsets // 3, c.durations, c.owner, c.into_f, c.into_b,
                c.m_b, c.m_w, c.limit * (1 + ROUNDING), fill, self._makespan, warm,
                warm * COLD ** (1 / SLICES), moves, reach, self._state, best.interrupt.flag,
            )  # fmt: skip
            if cost < best.cost:
                best.offer(by_rank(found, offsets), "search", cost)
            if best.over():
                return


def by_rank(order: IntArray, offsets: IntArray) -> Order:
    """The row of each rank in a flat order."""
    return tuple(np.split(order, offsets[1:-1]))
