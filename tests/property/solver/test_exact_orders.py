"""CP-SAT models of orders, of windows of them and of ranks, held against small optima."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import replace
from functools import partial
from itertools import cycle
from typing import TypeVar

import numpy as np
import pytest

from pipeloom.ir import (
    InfeasibleError,
    Objective,
    OpKind,
    Placement,
    Problem,
    Profile,
    Schedule,
    StageProfile,
    timed,
)
from pipeloom.ir.cost.dependency_graph import ScheduleGraph
from pipeloom.ir.cost.overlap import overlap_saves
from pipeloom.ir.model.ops import KIND_MASK
from pipeloom.solver import (
    Bound,
    Budget,
    Incumbent,
    SolveOptions,
    lower_bound,
    one_at_a_time,
    work_bound,
)
from pipeloom.solver.bounds.several_stages.general_placement import GeneralPlacement
from pipeloom.solver.core.linear_instance import LinearInstance
from pipeloom.solver.core.relaxations import unfused
from pipeloom.solver.exact.orders.general_interleaving import GeneralInterleaving, rank_orders
from pipeloom.solver.exact.orders.interleaving import Interleaving
from pipeloom.solver.exact.orders.rank_orders import BACKWARD, FORWARD, WEIGHT, OpClass
from pipeloom.solver.exact.orders.rank_windows import RankWindows, bound_by_windows, several_ranks
from pipeloom.solver.exact.orders.schedule_window import ScheduleWindow
from pipeloom.solver.exact.orders.target_bisection import ask, bisect, find
from pipeloom.solver.exact.orders.window_orders import WindowOrders
from pipeloom.solver.remat.portfolio import one_at_a_time_with_remat
from tests.property.small_exact.instances import problem_of
from tests.support.large_problems import large_problem
from tests.support.oracle import TooManyOrdersError, exhaustive_optimum, known_optimum

# the model of all orders on ranks with several stages, held against the best of all schedules -----


KINDS = ("linear", "v", "several stages a rank", "two copies")


def asked(problem: Problem, target: float) -> Incumbent:
    """What one question about schedules of at most ``target`` proves and finds."""
    best = Incumbent(problem, Bound(0.0, "none", ""), SolveOptions(time_limit=30))
    best.offer(one_at_a_time(problem), "one-at-a-time")
    linear = LinearInstance.of(problem)
    model = partial(GeneralInterleaving, problem)
    if linear is not None:
        model = partial(Interleaving, problem, linear)
    ask(best, model, target, best.budget(), seed=0)
    assert best.method in {"one-at-a-time", "cp-sat"}  # "interleaving" would read as a placement
    return best


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seeds", [range(12), pytest.param(range(12, 150), marks=pytest.mark.slow)])
def test_no_cost_of_a_schedule_is_refuted_and_most_just_below_are(kind: str, seeds: range) -> None:
    refuted = known = 0
    for seed in seeds:
        problem = problem_of(kind, seed)
        least = None if overlap_saves(problem) else known_optimum(problem, nodes=100_000)
        if not least:
            continue
        known += 1
        assert asked(problem, least * (1 + 1e-6)).bound.value <= least * (1 + 1e-9), seed
        refuted += asked(problem, least * (1 - 1e-3)).bound.value > 0
    assert known > len(seeds) / 5
    assert refuted > known / 2


def test_the_first_op_of_a_rank_may_start_late() -> None:
    """The best period is had where a rank's first op starts after its input has come."""
    stages = (
        StageProfile(4.0, 0.0, 0.0, 1.0, 0.8963717070571565),
        StageProfile(2.0, 2.0, 4.0, 1.0, 0.0010422488710475353),
        StageProfile(4.0, 0.0, 0.0, 1.0, 0.6307896659086383),
        StageProfile(0.0, 0.0, 3.0, 1.0, 0.28182757224821897),
    )
    limit = 4.2260567181501125
    problem = Problem(Profile(stages, 2, 0.0), 3, Placement.interleaved(2, 2), (limit, limit))
    assert asked(problem, 33.0 * (1 + 1e-6)).bound.value <= 33.0
    assert asked(problem, 33.0 * (1 - 1e-3)).bound.value > 0


@pytest.mark.parametrize("seed", range(4))
def test_two_copies_whose_bw_takes_less_than_b_and_w(seed: int) -> None:
    times = np.random.default_rng(seed).uniform(1, 5, (2, 3)).tolist()
    stages = tuple(StageProfile(f, b, w, 1.0, 0.5, t_bw=0.6 * (b + w)) for f, b, w in times)
    problem = Problem(Profile(stages, 2, 0.5), 2, Placement.bidirectional(2), (2.0, 2.0))
    assert not overlap_saves(problem)
    least = exhaustive_optimum(problem)
    assert asked(problem, least * (1 + 1e-6)).bound.value <= least * (1 + 1e-9)


def a_v(objective: Objective = Objective.PERIOD) -> Problem:
    stages = (StageProfile(1.0, 1.0, 1.0, 1.0, 0.5),) * 4
    return Problem(Profile(stages, 2, 0.0), 4, Placement.v(2), (2.0, 2.0), objective)


def test_memory_decides_most_pairs() -> None:
    """Two chunks fit: F of microbatch 2 on the lower stage waits for the B of microbatch 0."""
    rank = rank_orders(a_v())[0]
    f, b = OpClass(FORWARD, 0, 0), OpClass(BACKWARD, 0, 0)
    assert rank.beside(f, b, 0) == (1, range(1, 2))
    assert rank.beside(b, f, 2) == (1, range(1, 2))
    assert rank.beside(OpClass(WEIGHT, 0, 0), f, 3) == (1, range(1, 3))
    above = rank_orders(a_v())[1]
    assert above.beside(OpClass(FORWARD, 2, 0), b._replace(stage=1), 0) == (1, range(1, 1))


@pytest.mark.parametrize("objective", Objective)
def test_a_v_in_the_memory_of_one_microbatch_is_solved(objective: Objective) -> None:
    """One microbatch at a time passes both of a rank's stages."""
    problem = replace(a_v(objective), microbatches=3)
    least = exhaustive_optimum(problem)
    assert asked(problem, least * 1.01).cost == pytest.approx(least, rel=0.01)
    assert asked(problem, least * 0.99).bound.value == pytest.approx(least * 0.99)


def test_a_limit_above_all_that_can_be_held_is_none() -> None:
    problem = replace(a_v(), memory_limit=(1e12,) * a_v().ranks)
    assert all(rank.limit is None for rank in rank_orders(problem))
    GeneralInterleaving(problem, 1.0, 100.0)


# asked whether schedules below a target exist, the model of all orders never says no wrongly ------


def test_three_slots_on_four_stages_are_solved_to_the_optimum() -> None:
    stage = StageProfile(1.0, 1.0, 0.6, 1.0, 0.5)
    problem = Problem.linear(Profile((stage,) * 4, 4, 0.0), 9, 3.0)
    linear = LinearInstance.of(problem)
    assert linear is not None
    best = Incumbent(problem, Bound(0.0, "none", ""), SolveOptions(time_limit=60.0))
    best.offer(one_at_a_time(problem), "one-at-a-time")
    assert ask(best, partial(Interleaving, problem, linear), best.cost, Budget(60.0), seed=0)
    assert best.closed


def test_amounts_that_are_no_decimals_are_solved_too() -> None:
    """Ticks are rounded then: bound and cost meet within them, and no question is asked twice."""
    rng = np.random.default_rng(0)
    stages = tuple(StageProfile(*rng.uniform(0.5, 1.5, 3).tolist(), 1.0, 0.4) for _ in range(4))
    problem = Problem.linear(Profile(stages, 4, 0.123456789), 6, 2.0)
    best = Incumbent(problem, Bound(0.0, "none", ""), SolveOptions(time_limit=60.0))
    best.offer(one_at_a_time(problem), "one-at-a-time")
    for _ in bisect(best, seed=0):
        pass
    assert best.seconds < 30
    assert best.cost - best.bound.value <= 1e-5 * best.cost


# the model of a window: of all ops it finds the optimum, of some it keeps the others' order -------


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


# what windows of few microbatches on one rank and on several prove, held against all schedules ----


PLACED_KINDS = ("v", "several stages a rank")
Found = TypeVar("Found")


def beside(problem: Problem, cost: float, work: float | None = None) -> Incumbent:
    """An incumbent that is said to cost so much, with no bound."""
    limits = SolveOptions(time_limit=30, work_limit=work)
    best = Incumbent(problem, Bound(0.0, "none", ""), limits)
    best.offer(one_at_a_time(problem), "one-at-a-time", cost)
    return best


def yield_all(asked: Generator[None, None, Found]) -> Found:
    while True:
        try:
            next(asked)
        except StopIteration as end:
            found: Found = end.value
            return found


def with_other_limits(problem: Problem, seed: int) -> Problem:
    """The problem with up to half more memory on each rank, of every second seed."""
    more = np.random.default_rng(seed).uniform(1.0, 1.5, problem.ranks) ** (seed // 2 % 2)
    return replace(problem, memory_limit=tuple(more * problem.memory_limit))


def ask_two_ranks(best: Incumbent) -> None:
    """Takes what windows of the first and the last rank prove, the others being ways."""
    placed = GeneralPlacement.of(unfused(best.problem))
    first, *others = sorted(placed.hosts, key=lambda host: host.lowest)
    wide = RankWindows(best, placed, first, others[-1:])
    for m in range(1, wide.all + 1):
        list(wide.follow(m))


def checked(first: int, number: int, *, asks_all: bool = False) -> int:
    """How many of so many small problems were held against their optimum; ``asks_all``: the model
    of all orders, too, which is told what windows prove."""
    decided = 0
    for seed, kind in zip(range(first, first + number), cycle(PLACED_KINDS), strict=False):
        problem = with_other_limits(problem_of(kind, seed), seed)
        least = known_optimum(problem, nodes=60_000)
        if not least or math.isinf(min(problem.memory_limit)):
            continue
        decided += 1
        for ceiling in (least, 1.7 * least):
            best = beside(problem, ceiling)
            apart = yield_all(bound_by_windows(best))
            assert best.bound.value <= least * (1 + 1e-7), (kind, seed)
            ask_two_ranks(two := beside(problem, ceiling))
            assert two.bound.value <= least * (1 + 1e-7), (kind, seed)
            if asks_all:
                list(bisect(best, seed, apart))
                assert best.bound.value <= least * (1 + 1e-7), (kind, seed)
    return decided


def test_no_bound_is_above_the_optimum() -> None:
    assert checked(0, 10, asks_all=True) > 2


@pytest.mark.slow
def test_no_bound_is_above_thousands_of_optima() -> None:
    assert checked(0, 6000) > 2000


def test_windows_teach_each_other_what_longer_questions_alone_refute_too() -> None:
    """An instance whose best known schedule costs 1250.6: rank 3 alone,
    with seven of its twelve microbatches."""
    problem = large_problem("v", 0)
    best, placed = beside(problem, 1250.6), GeneralPlacement.of(problem)
    taught = RankWindows(best, placed, placed.hosts[3])
    for m in range(1, 7):
        for _ in taught.grow(m):
            pass
    assert taught.least[6] > 1.5 * taught.least[3] > 1.8 * taught.least[1]
    for m, least in taught.least.items():
        alone = RankWindows(best, placed, placed.hosts[3])
        assert m == 0 or alone.ask(m, least - 1, 20.0) == least
    alone.least = taught.least
    list(alone.finish())
    assert lower_bound(problem).value < 900.0 < 1100.0 < best.bound.value < 1250.6
    assert best.bound.name == "rank-orders"
    assert "rank 3 takes at least" in best.bound.explained()[0]


def test_windows_of_all_ranks_take_longer_than_those_of_one() -> None:
    """The same instance: of seven microbatches all ranks prove what rank 3 alone does not."""
    problem = large_problem("v", 0)
    best, placed = beside(problem, 1250.6, 3000), GeneralPlacement.of(problem)
    fold = RankWindows(best, placed, placed.hosts[3])
    for m in range(1, 7):
        list(fold.grow(m))
    wide = several_ranks(best, placed, [fold])
    assert wide is not None
    for m in range(1, 7):
        list(wide.follow(m))
    assert max(wide.least) == 6
    assert wide.bound.value > 1.02 * fold.bound.value
    assert wide.ask(6, int(1.03 * wide.least[6]), 20.0) <= int(1.03 * wide.least[6])


def test_of_large_problems_the_first_and_the_last_rank_are_asked_about_or_none() -> None:
    best = beside(large_problem("interleaved", 5), 1800.0)
    wide = several_ranks(best, GeneralPlacement.of(best.problem))
    assert wide is not None
    assert [rank.rank for rank in wide.hosts] == [0, 7]
    best = beside(large_problem("v", 8), 3400.0)
    assert several_ranks(best, GeneralPlacement.of(best.problem)) is None


def v_of(times: tuple[float, float, float], microbatches: int) -> Problem:
    """A V on two ranks, with room for some 3.5 microbatches."""
    stages = (StageProfile(*times, 1.0, 0.2),) * 4
    profile = Profile(stages, 2, t_comm=0.0)
    return Problem(profile, microbatches, Placement.v(2), (6.9,) * 2)


def test_a_window_that_takes_no_time_is_not_refuted() -> None:
    problem = v_of((0.0, 0.0, 1.0), 6)
    best, placed = beside(problem, 40.0), GeneralPlacement.of(problem)
    windows = RankWindows(best, placed, placed.hosts[0])
    assert windows.ask(1, 0, 20.0) == 0
    list(bound_by_windows(best))
    assert best.bound.value <= 1.0


def test_windows_whose_models_would_take_long_to_build_are_not_asked_about() -> None:
    problem = v_of((1.0, 1.0, 1.0), 1000)
    best, placed = beside(problem, 9000.0), GeneralPlacement.of(problem)
    assert not list(RankWindows(best, placed, placed.hosts[0]).finish())
