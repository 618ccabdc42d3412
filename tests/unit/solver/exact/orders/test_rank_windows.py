"""What windows of few microbatches on one rank and on several prove, held against all schedules."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import replace
from itertools import cycle
from typing import TypeVar

import numpy as np
import pytest

from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.solver.bounds import lower_bound
from pipeloom.solver.bounds.several_stages.general_placement import GeneralPlacement
from pipeloom.solver.construct.one_at_a_time import one_at_a_time
from pipeloom.solver.core.bound import Bound
from pipeloom.solver.core.incumbent import Incumbent
from pipeloom.solver.core.options import SolveOptions
from pipeloom.solver.core.relaxations import unfused
from pipeloom.solver.exact.orders.rank_windows import RankWindows, bound_by_windows, several_ranks
from pipeloom.solver.exact.orders.target_bisection import bisect
from tests.property.small_exact.instances import problem_of
from tests.support.large_problems import large_problem
from tests.support.oracle import known_optimum

KINDS = ("v", "several stages a rank")
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
    for seed, kind in zip(range(first, first + number), cycle(KINDS), strict=False):
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
    """Instance 0 of ``benchmarks/gaps``, whose best known schedule costs 1250.6: rank 3 alone,
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
