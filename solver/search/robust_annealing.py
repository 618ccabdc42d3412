"""Robust local search: orders annealed by their mean cost, or a quantile, over samples of op times.

All orders are compared on the same samples (common random numbers), so that differences between
orders are not those between samples. Others must judge the result: of those that were searched the
best is better than it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import wait
from functools import partial
from math import inf

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.model.ops import (
    FloatArray,
    IntArray,
    Op,
    OpKind,
    offsets_of,
    pack,
    split_backwards,
)
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.profile import Profile, StageProfile

from ..core.kernels import CostArrays, seeded
from ..core.options import Order, SolveOptions
from ..core.stopping import NEVER, OPS_A_SECOND, Budget, FirstOf, StoppingCriterion
from ..core.worker_threads import POLL, in_thread
from .kernels.robust import TIMES, WALK, anneal_samples, measure_of, sampled_costs, time_samples
from .local_search import by_rank

FIRST, ROUND = 0.03, 0.25
"""Shares of the budget of the first round from each start, and of the others."""
COLD = 0.03  # the last temperature of a round, in units of the first
TEMPERATURES = (0.04, 0.1, 0.015, 0.004)
"""The first temperatures of rounds in turn, in units of an op's mean time."""
REACHES = (20, 8)
IDLE_ROUNDS = 4
"""Rounds without a gain after which the search ends."""
LEAST_GAIN = 1e-5
WARM = 1e-3
"""Work that has all kernels called."""


class RobustAnnealer:
    """Annealing of orders of F's, B's and W's, by ``ratios`` of their times, (4, S, M, n).

    ``share``: of the quantile that counts; 0: the mean. ``deviation``: an op's standard deviation,
    in ms; ``ops_of_cost``: what :meth:`cost` counts in simulated ops.
    """

    def __init__(
        self, problem: Problem, ratios: FloatArray, share: float, rng: np.random.Generator
    ) -> None:
        costs, self._share = CostArrays.of(Costs.of(problem)), share
        self._makespan = problem.objective is Objective.MAKESPAN
        times = costs.durations[:3].reshape(3, problem.stages, -1)
        sampled = times[..., None] * ratios[:3]
        durations = np.ascontiguousarray(sampled.reshape(-1, sampled.shape[3]))
        self._costs = costs._replace(durations=durations)
        self._unit, self.deviation = float(times.mean()), float(sampled.std(axis=3).mean())
        self.ops_of_cost = len(durations) * (WALK + TIMES * sampled.shape[3])
        self._state = seeded(rng)

    def cost(self, order: Order) -> float:
        """The mean cost of an order, or its quantile; infinite where it can never run."""
        flat, offsets = _flat(order)
        c, (size, samples) = self._costs, self._costs.durations.shape
        end, before = np.zeros((2, size, samples))
        (made, changed), rows = np.empty((2, size), dtype=bool), np.empty(size, dtype=np.int64)
        if not time_samples(
            flat, offsets, 0, len(flat), c, end, made, changed, rows, before
        )[0]:  # fmt: skip
            return inf
        found, longest = np.empty(samples), np.empty(samples, dtype=np.int64)
        sampled_costs(flat, offsets, c, end, self._makespan, found, longest)
        return float(measure_of(found, self._share))

    def improve(
        self, starts: Sequence[Order], budget: Budget, should_stop: StoppingCriterion
    ) -> list[Order]:
        """The best order that was met from each start, the best of all first; rounds go on from
        that one until they gain nothing, or the budget is over."""
        found: list[tuple[float, Order]] = []
        over = FirstOf(budget, should_stop)
        for start in starts:
            if found and over():
                break
            cost = self.cost(start)
            found.append(self._round(cost, start, 0, budget, share=FIRST, over=should_stop))
        found.sort(key=lambda pair: pair[0])
        idle, turn = 0, 0
        while idle < IDLE_ROUNDS and not over() and self._unit > 0:
            cost, order = self._round(*found[0], turn, budget, share=ROUND, over=over)
            idle = 0 if cost < found[0][0] * (1 - LEAST_GAIN) else idle + 1
            found[0], turn = (cost, order), turn + 1
        return [order for _, order in found]

    def _round(
        self,
        cost: float,
        start: Order,
        turn: int,
        budget: Budget,
        *,
        share: float,
        over: StoppingCriterion,
    ) -> tuple[float, Order]:
        flat, offsets = _flat(start)
        whole = min(budget.work.ops, budget.time.seconds * OPS_A_SECOND)
        ops = min(share * whole, budget.work.left)
        if ops < self.ops_of_cost or self._unit <= 0:
            return cost, start
        best = flat.copy()
        hot = self._unit * TEMPERATURES[turn % len(TEMPERATURES)]
        anneal = partial(
            anneal_samples, flat, best, cost, offsets, self._costs, self._makespan, self._share,
            hot, hot * COLD, ops, REACHES[turn % len(REACHES)], self._state, budget.interrupt.flag,
        )  # fmt: skip
        best_cost = _watched(anneal, budget, over)
        budget.work.spend(ops)
        return (best_cost, by_rank(best, offsets)) if best_cost < cost else (cost, start)


def warm_up() -> None:
    """Has the kernels ready: compiled on their first use on a machine, which takes long."""
    problem = Problem.linear(Profile((StageProfile(1.0, 1.0, 1.0),), 1), 1)
    annealer = RobustAnnealer(problem, np.ones((4, 1, 1, 2)), 0.0, np.random.default_rng(0))
    order = pack(Op(kind, 0, 0) for kind in (OpKind.F, OpKind.B, OpKind.W))
    annealer.improve([(order,)], SolveOptions(work_limit=WARM).budget, NEVER)


def _watched(anneal: Callable[[], float], budget: Budget, over: StoppingCriterion) -> float:
    """Runs the kernel in a thread of its own, until it has ended or is to stop: the best cost."""
    running = in_thread(anneal)
    try:
        while not wait([running], POLL).done:
            if over():
                budget.interrupt.put()
        return running.result()
    finally:
        if not running.done():
            budget.interrupt.put()


def _flat(order: Order) -> tuple[IntArray, IntArray]:
    rows = tuple(map(split_backwards, order))
    return np.concatenate(rows).astype(np.int64), offsets_of(rows)
