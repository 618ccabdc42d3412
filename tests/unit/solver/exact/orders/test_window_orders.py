"""The model of a window: of all ops it finds the optimum, of some it keeps the others' order."""

from __future__ import annotations

import numpy as np
import pytest

from pipeloom.ir.cost.dependency_graph import ScheduleGraph
from pipeloom.ir.cost.simulator import timed
from pipeloom.ir.errors import InfeasibleError
from pipeloom.ir.model.ops import KIND_MASK, OpKind
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule
from pipeloom.solver.bounds import work_bound
from pipeloom.solver.construct.one_at_a_time import one_at_a_time
from pipeloom.solver.core.incumbent import Incumbent
from pipeloom.solver.core.options import SolveOptions
from pipeloom.solver.exact.orders.general_interleaving import rank_orders
from pipeloom.solver.exact.orders.schedule_window import ScheduleWindow
from pipeloom.solver.exact.orders.target_bisection import find
from pipeloom.solver.exact.orders.window_orders import WindowOrders
from pipeloom.solver.remat.portfolio import one_at_a_time_with_remat
from tests.property.small_exact.instances import problem_of
from tests.support.large_problems import large_problem
from tests.support.oracle import TooManyOrdersError, exhaustive_optimum

WORK = 1_000_000_000


def _incumbent(problem: Problem) -> Incumbent:
    return Incumbent(problem, work_bound(problem), SolveOptions(work_limit=WORK))


@pytest.mark.parametrize("kind", ["several stages a rank", "v", "linear"])
def test_of_all_ops_the_best_order_is_found_and_no_better_one(kind: str) -> None:
    decided = 0
    for seed in range(13):
        problem = problem_of(kind, seed)
        try:
            best = _incumbent(problem)
            best.offer(one_at_a_time(problem), "one-at-a-time")
            optimum = exhaustive_optimum(problem, ceiling=best.cost, nodes=30_000)
        except (InfeasibleError, TooManyOrdersError):
            continue
        decided += 1
        graph = ScheduleGraph.of(timed(Schedule(problem, one_at_a_time(problem))))
        lengths = np.diff(graph.offsets)
        window = ScheduleWindow(graph, 0 * lengths, lengths, rank_orders(problem))
        below = find(best, WindowOrders(window, optimum * (1 - 1e-5)), best.budget(), 0)
        assert below.refuted, seed
        find(best, WindowOrders(window, optimum * (1 + 1e-6)), best.budget(), 0)
        assert best.cost <= optimum * (1 + 1e-5), seed
    assert decided >= 3


@pytest.mark.parametrize("kind", ["v", "makespan", "remat", "little memory"])
def test_what_is_not_in_the_window_keeps_its_order(kind: str) -> None:
    problem = large_problem(kind, 5 if kind == "little memory" else 1)
    remat = kind == "remat"
    order = one_at_a_time_with_remat(problem, every=True) if remat else one_at_a_time(problem)
    best, schedule = _incumbent(problem), timed(Schedule(problem, order))
    cost = schedule.known_timing.cost(problem.objective)
    best.offer(order, "one-at-a-time", cost)
    middle = max(row[-1] for row in schedule.known_timing.start) / 2
    first = np.array([row.searchsorted(0.7 * middle) for row in schedule.known_timing.start])
    stop = np.array(
        [row.searchsorted(1.1 * middle, "right") for row in schedule.known_timing.start]
    )
    window = ScheduleWindow(ScheduleGraph.of(schedule), first, stop)
    find(best, WindowOrders(window, 0.98 * cost), best.budget(), 0)
    assert best.order is not None
    assert best.cost <= 0.98 * cost * (1 + 1e-6)
    for row, now, a, b in zip(order, best.order, first, stop, strict=True):
        assert (row[:a] == now[:a]).all()
        assert (row[b:] == now[b:]).all()
        assert sorted(row[a:b]) == sorted(now[a:b])


@pytest.mark.parametrize(("every", "free"), [(False, True), (True, True), (True, False)])
def test_what_is_recomputed_is_decided_where_it_is_free(every: bool, free: bool) -> None:
    """Two microbatches do not fit unless they are recomputed; one of each rank's may stay."""
    problem = large_problem("remat", 1)
    order = one_at_a_time_with_remat(problem, every=True) if every else one_at_a_time(problem)
    best, schedule = _incumbent(problem), timed(Schedule(problem, order))
    cost = schedule.known_timing.cost(problem.objective)
    best.offer(order, "one-at-a-time", cost)
    graph = ScheduleGraph.of(schedule)
    lengths = np.diff(graph.offsets)
    window = ScheduleWindow(graph, 0 * lengths, lengths, free=free)
    find(best, WindowOrders(window, 0.6 * cost), best.budget(), 0)
    assert best.order is not None
    assert best.cost <= 0.6 * cost * (1 + 1e-6)
    again = [int((row & KIND_MASK == OpKind.R).sum()) for row in best.order]
    number = problem.microbatches
    assert all(0 < each < number for each in again) if free else set(again) == {number}
