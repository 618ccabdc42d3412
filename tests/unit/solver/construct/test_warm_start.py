"""The schedules that ``optimize`` begins with."""

from __future__ import annotations

import pytest
from hypothesis import given

from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.model.ops import format_order, unpack
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule
from pipeloom.solver.construct.warm_start import alternating_row, warm_starts, warm_up_counts
from pipeloom.solver.core.linear_instance import LinearInstance
from pipeloom.solver.families import FAMILIES
from tests.property.solver.bounds.test_bounds import problems


def linear(limit: float, stages: int = 3, microbatches: int = 3) -> LinearInstance:
    profile = Profile((StageProfile(1.0, 1.0, 1.0, 1.0, 0.5),) * stages, stages)
    found = LinearInstance.of(Problem.linear(profile, microbatches, limit))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("limit", "wait", "expected"),
    [
        (2.0, 0, "0F0 0F1 0B0 0W0 0F2 0B1 0W1 0B2 0W2"),
        (2.0, 3, "0F0 0F1 0B0 0W0 0F2 0B1 0B2 0W1 0W2"),
        (2.5, 3, "0F0 0F1 0B0 0F2 0B1 0B2 0W0 0W1 0W2"),
        (2.5, 1, "0F0 0F1 0B0 0F2 0B1 0W0 0B2 0W1 0W2"),
    ],
)
def test_a_forward_without_room_waits_for_a_weight_gradient(
    limit: float, wait: int, expected: str
) -> None:
    assert format_order(unpack(alternating_row(linear(limit), 0, 2, wait))) == expected


def test_warm_ups_share_what_memory_holds() -> None:
    assert warm_up_counts(linear(4.0, stages=8, microbatches=24), 0.5) == [4, 4, 3, 3, 2, 2, 1, 1]
    assert warm_up_counts(linear(4.0, stages=8, microbatches=24), 1.0) == [4, 4, 4, 4, 4, 3, 2, 1]


@pytest.mark.parametrize("microbatches", [4, 6, 12])
def test_zb_h1_is_among_them_however_few_microbatches(microbatches: int) -> None:
    problem = Problem.linear(Profile((StageProfile(1.0, 1.0, 1.0),) * 6, 6), microbatches)
    found = LinearInstance.of(problem)
    assert found is not None
    wanted = [row.tolist() for row in FAMILIES["zb-h1"].build(problem).order]
    assert wanted in [[r.tolist() for r in order] for order in warm_starts(problem, found)]


def test_no_warm_up_is_longer_than_one_before_it() -> None:
    """Stage 1's fifth F before its first B would wait for one that stage 0 has no room for."""
    profile = Profile((StageProfile(1.0, 1.0, 1.0, 1.0, 0.5),) * 4, 4, memory_limit=(4, 9, 9, 3))
    problem = Problem.linear(profile, 12)
    found = LinearInstance.of(problem)
    assert found is not None
    assert warm_up_counts(found, 2.0) == [4, 4, 3, 1]
    assert warm_up_counts(found, 12.0) == [4, 4, 4, 1]
    for order in warm_starts(problem, found):
        simulate(Schedule(problem, order))  # raises where ranks wait for each other


@given(problem=problems(3, 4))
def test_every_warm_start_runs_within_its_memory(problem: Problem) -> None:
    found = LinearInstance.of(problem)
    assert found is not None
    for order in warm_starts(problem, found):
        schedule = Schedule(problem, order)
        assert schedule.num_ops == 3 * 3 * 4
        peaks = zip(simulate(schedule).peak_memory, problem.memory_limit, strict=True)
        assert all(peak <= limit * (1 + 1e-9) for peak, limit in peaks)
