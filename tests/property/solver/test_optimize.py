"""``optimize`` on random tiny problems: valid, in its limit, between its bound and the optimum."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.formats import dump_schedule
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.schedule import Schedule, Status
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.solver.bounds import lower_bound
from pipeloom.solver.core.schedule_cost import objective_cost
from pipeloom.solver.optimize import optimize
from tests.property.solver.bounds.test_bounds import problems
from tests.support.oracle import exhaustive_optimum
from tests.support.random_schedules import schedules


def violations(schedule: Schedule) -> list[str]:
    """What the verifier says of the schedule's file."""
    return verify_schedule(json.loads(json.dumps(dump_schedule(schedule))))


def stopped_after(looks: int, problem: Problem, seed: int = 0) -> Schedule:
    """What ``optimize`` has after a number of looks at the clock, however long they take."""
    left = iter(range(looks))
    return optimize(
        problem, solver="heuristic", seed=seed, should_stop=lambda: next(left, None) is None
    )


@pytest.mark.parametrize(("ranks", "microbatches"), [(1, 3), (2, 2), (3, 1), (3, 2), (2, 3)])
@settings(max_examples=25)
@given(data=st.data())
def test_schedules_are_valid_and_never_below_the_optimum(
    ranks: int, microbatches: int, data: st.DataObject
) -> None:
    problem = data.draw(problems(ranks, microbatches))
    schedule = stopped_after(150, problem)
    assert violations(schedule) == []
    bound = schedule.known_report.lower_bound
    assert bound is not None
    best = exhaustive_optimum(problem)
    assert objective_cost(schedule) >= best * (1 - 1e-9)
    assert bound <= best * (1 + 1e-9)
    if schedule.known_report.status is Status.OPTIMAL:
        assert objective_cost(schedule) <= best * (1 + 2e-6)


@settings(max_examples=30)
@given(schedule=schedules(), objective=st.sampled_from(Objective))
def test_any_schedule_of_any_placement_costs_at_least_the_bound(
    schedule: Schedule, objective: Objective
) -> None:
    given = schedule.problem
    problem = Problem(
        given.profile, given.microbatches, given.placement, given.memory_limit, objective
    )
    assert lower_bound(problem).value <= simulate(schedule).cost(objective) * (1 + 1e-9)


@settings(max_examples=15)
@given(
    owners=st.lists(st.integers(0, 2), min_size=3, max_size=6),
    microbatches=st.integers(1, 4),
    data=st.data(),
)
def test_any_placement_is_searched(
    owners: list[int], microbatches: int, data: st.DataObject
) -> None:
    linear = data.draw(problems(len(owners), 1))
    profile = linear.profile
    profile = type(profile)(profile.stages, 3, 0.5)
    placement = Placement.of_stages(tuple(owners))
    limit = (2 * sum(stage.m_b for stage in profile.stages),) * 3
    problem = Problem(profile, microbatches, placement, limit, linear.objective)
    schedule = stopped_after(5, problem)
    assert violations(schedule) == []


@settings(max_examples=4)
@given(problem=problems(3, 4), seed=st.integers(0, 1000))
def test_a_seed_gives_the_same_schedule_again(problem: Problem, seed: int) -> None:
    once, again = (stopped_after(100, problem, seed) for _ in range(2))
    assert [row.tolist() for row in once.order] == [row.tolist() for row in again.order]
