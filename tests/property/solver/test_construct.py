"""Every setting of a constructor gives a valid schedule, or says that it gets stuck."""

from __future__ import annotations

from itertools import islice

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeloom.ir.cost.simulator import timed
from pipeloom.ir.formats.schedule_json import dump_schedule
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Report, Schedule
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.solver.bounds import lower_bound
from pipeloom.solver.construct.linear import Constructor
from pipeloom.solver.construct.linear import settings as family
from pipeloom.solver.construct.one_at_a_time import one_at_a_time
from pipeloom.solver.construct.round_based import RoundParameters
from pipeloom.solver.core.incumbent import Incumbent
from pipeloom.solver.core.linear_instance import LinearInstance
from pipeloom.solver.core.options import Order, SolveOptions
from pipeloom.solver.search.constructor_search import LinearListTuner
from tests.support.random_problems import linear_problems as problems

MUTATIONS = 5
EVERY = 37
"""Which settings of the family are built."""


def assert_valid(problem: Problem, rows: Order, cost: float, bound: float) -> None:
    """Verified by the contract's rules, of this cost, and no better than the bound."""
    schedule = timed(Schedule(problem, rows, report=Report(problem.objective, "search")))
    assert verify_schedule(dump_schedule(schedule)) == []
    assert abs(schedule.known_timing.cost(problem.objective) - cost) <= 1e-9 * cost
    assert cost >= bound * (1 - 1e-9)


@given(st.data(), st.integers(1, 4), st.integers(1, 8), st.integers(0, 1 << 30))
def test_what_is_built_is_valid_and_costs_what_it_says(
    data: st.DataObject, ranks: int, microbatches: int, seed: int
) -> None:
    problem = data.draw(problems(ranks, microbatches))
    linear = LinearInstance.of(problem)
    assert linear is not None
    bound, rng = lower_bound(problem).value, np.random.default_rng(seed)
    constructor = Constructor(problem, linear)
    settings_of_both = family(linear, bound, linear.lags(problem.objective))
    for parameters in islice(settings_of_both, None, None, EVERY):
        rows = constructor.build(parameters)
        if rows is not None:
            assert_valid(problem, rows, constructor.cost(rows), bound)
        if isinstance(parameters, RoundParameters):
            for _ in range(MUTATIONS):
                parameters = parameters.mutated(linear, rng)  # noqa: PLW2901
                rows = constructor.build(parameters)
                if rows is not None:
                    assert_valid(problem, rows, constructor.cost(rows), bound)


@given(st.data(), st.integers(1, 4), st.integers(1, 8), st.integers(0, 1 << 30))
def test_what_the_dispatcher_finds_is_valid(
    data: st.DataObject, ranks: int, microbatches: int, seed: int
) -> None:
    problem = data.draw(problems(ranks, microbatches))
    linear = LinearInstance.of(problem)
    assert linear is not None
    best = Incumbent(problem, lower_bound(problem), SolveOptions(work_limit=0.3))
    best.offer(one_at_a_time(problem), "one-at-a-time")
    lags = linear.lags(problem.objective)
    built = [(0.0, each) for each in family(linear, best.bound.value, lags)]
    constructor, rng = Constructor(problem, linear), np.random.default_rng(seed)
    dispatcher = LinearListTuner(constructor, built, rng, problem.objective)
    if dispatcher.able:
        dispatcher.round(best)
    assert best.order is not None
    assert_valid(problem, best.order, best.cost, best.bound.value)
