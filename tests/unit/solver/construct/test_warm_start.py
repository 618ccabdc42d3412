"""The schedules that ``optimize`` begins with."""

from __future__ import annotations

import pytest
from hypothesis import given

from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule
from pipeloom.solver.construct.warm_start import warm_starts
from pipeloom.solver.core.linear_instance import LinearInstance
from pipeloom.solver.families import FAMILIES
from tests.support.random_problems import linear_problems as problems


@pytest.mark.parametrize("microbatches", [4, 6, 12])
def test_zb_h1_is_among_them_however_few_microbatches(microbatches: int) -> None:
    problem = Problem.linear(Profile((StageProfile(1.0, 1.0, 1.0),) * 6, 6), microbatches)
    found = LinearInstance.of(problem)
    assert found is not None
    wanted = [row.tolist() for row in FAMILIES["zb-h1"].build(problem).order]
    assert wanted in [[r.tolist() for r in order] for order in warm_starts(problem, found)]


@given(problem=problems(3, 4))
def test_every_warm_start_runs_within_its_memory(problem: Problem) -> None:
    found = LinearInstance.of(problem)
    assert found is not None
    for order in warm_starts(problem, found):
        schedule = Schedule(problem, order)
        assert schedule.num_ops == 3 * 3 * 4
        peaks = zip(simulate(schedule).peak_memory, problem.memory_limit, strict=True)
        assert all(peak <= limit * (1 + 1e-9) for peak, limit in peaks)
