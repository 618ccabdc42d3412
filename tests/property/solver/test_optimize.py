"""``optimize`` on random small problems: valid, in its limit, the optimum with enough work."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.errors import InfeasibleError
from pipeloom.ir.formats import dump_schedule
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.solver.bounds import lower_bound
from pipeloom.solver.core.schedule_cost import objective_cost
from pipeloom.solver.optimize import optimize
from tests.property.small_exact.instances import KINDS, problem_of
from tests.support.oracle import known_optimum
from tests.support.random_problems import linear_problems as problems
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


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "weights"])
def test_small_problems_of_every_kind_are_solved_to_the_optimum(kind: str) -> None:
    decided = 0
    for problem in (problem_of(kind, seed) for seed in range(6)):
        least = known_optimum(problem, nodes=30_000) if feasible(problem) else None
        if least is None:
            continue
        decided += 1
        schedule = optimize(problem, work_limit=4)
        assert violations(schedule) == []
        assert objective_cost(schedule) == pytest.approx(least, rel=1e-6)
        assert schedule.known_report.known_bound <= least * (1 + 1e-9)
    assert decided


def feasible(problem: Problem) -> bool:
    try:
        return lower_bound(problem) is not None
    except InfeasibleError:
        return False


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
