"""Asked whether schedules below a target exist, the model of all orders never says no wrongly."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.solver.construct.one_at_a_time import one_at_a_time
from pipeloom.solver.core.bound import Bound
from pipeloom.solver.core.incumbent import Incumbent
from pipeloom.solver.core.linear_instance import LinearInstance
from pipeloom.solver.core.options import SolveOptions
from pipeloom.solver.core.stopping import Budget
from pipeloom.solver.exact.orders.interleaving import Interleaving
from pipeloom.solver.exact.orders.target_bisection import ask, bisect
from tests.support.oracle import exhaustive_optimum
from tests.support.random_problems import linear_problems as problems

TIMES = st.sampled_from([0.0, 0.5, 1.0, 1.2, 3.0, 1 / 3])


@st.composite
def tight(draw: st.DrawFn, ranks: int, microbatches: int) -> Problem:
    """Fewer microbatches fit than there are ranks; W's are small enough to wait two at a time."""
    weights = draw(st.sampled_from([0.0, 0.4, 1.0]))
    stages = tuple(
        StageProfile(draw(TIMES), draw(TIMES), draw(TIMES), 1.0, weights) for _ in range(ranks)
    )
    limit = tuple(draw(st.sampled_from([1.0, 2.0, 2.5, float(ranks)])) for _ in range(ranks))
    delay = st.sampled_from([0.0, 0.3, 4.0])
    matrix = tuple(tuple(draw(delay) for _ in range(ranks)) for _ in range(ranks))
    objective = draw(st.sampled_from(Objective))
    profile = Profile(stages, ranks, matrix)
    return Problem(profile, microbatches, Placement.linear(ranks), limit, objective)


def assert_asks_right(problem: Problem) -> None:
    least = exhaustive_optimum(problem)
    linear = LinearInstance.of(problem)
    assert linear is not None
    for target in (0.9 * least, least, 1.3 * least):
        if target <= 0.0:
            continue
        best = Incumbent(problem, Bound(0.0, "none", ""), SolveOptions(time_limit=60.0))
        best.offer(one_at_a_time(problem), "one-at-a-time")
        answered = ask(best, partial(Interleaving, problem, linear), target, Budget(2.0), seed=0)
        assert best.bound.value <= least * (1 + 1e-9)
        assert best.cost >= least * (1 - 1e-9)
        if answered and problem.objective is Objective.MAKESPAN:  # the model is exact
            assert best.bound.value >= min(target, least) * (1 - 1e-5)


@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 3), (2, 3), (3, 2), (3, 3)])
@settings(max_examples=15)
@given(data=st.data())
def test_answers_are_right(ranks: int, microbatches: int, data: st.DataObject) -> None:
    assert_asks_right(data.draw(tight(ranks, microbatches)))


@settings(max_examples=15)
@given(problem=problems(2, 3))
def test_answers_are_right_for_any_amounts(problem: Problem) -> None:
    assert_asks_right(problem)


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 4), (3, 3), (4, 2)])
@given(data=st.data())
def test_answers_are_right_for_many_problems(
    ranks: int, microbatches: int, data: st.DataObject
) -> None:
    assert_asks_right(data.draw(tight(ranks, microbatches)))


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
