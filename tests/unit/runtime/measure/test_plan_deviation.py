"""One line says why a run took far longer than planned, or far less, and none is said elsewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeloom.compiler import compile_schedule
from pipeloom.ir import Objective, Profile, Schedule, StageProfile, timed
from pipeloom.ir.model.schedule import OPTIMIZED
from pipeloom.runtime.measure import plan_deviation as lateness
from tests.support.schedules import schedule


def lasting(op: float, family: str = "1f1b") -> Schedule:
    """On two ranks, every op ``op`` milliseconds long and no delay."""
    plan = schedule(family, 2, 3)
    profile = Profile(
        (StageProfile(op, op, op),) * plan.problem.stages, ranks=plan.problem.ranks, t_comm=0.0
    )
    return timed(replace(plan, problem=replace(plan.problem, profile=profile), timing=None))


@pytest.mark.parametrize(
    ("ratio", "cores", "op", "expected"),
    [
        (1.4, 1, 5.0, None),
        (3.0, 1, 5.0, "2 ranks share 1 core"),
        (3.0, 2, 5.0, "the profile may be of another model or machine"),
        (3.0, 1, 0.25, "2 ranks share 1 core, ops are short, 0.25 ms in the median"),
    ],
)
def test_the_reason(
    ratio: float, cores: int, op: float, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr(lateness, "_cores", lambda: cores)
    found = lateness.why_far_off(lasting(op), lasting(ratio * op))
    if expected is None:
        assert found is None
    else:
        assert found == f"{ratio:.1f}x the planned makespan: {expected}; see docs/profiling.md"


def test_a_barrier_that_an_optimized_plan_is_without() -> None:
    plan = lasting(1.0, "zb-h2")
    period, makespan = plan.known_timing.period, plan.known_timing.makespan
    assert period < makespan
    assert lateness.made_without_barrier(plan) is None  # no objective shapes a family
    made = replace(plan, report=replace(plan.known_report, family=OPTIMIZED))
    assert "--objective makespan" in (lateness.made_without_barrier(made) or "")
    problem = replace(made.problem, objective=Objective.MAKESPAN)
    assert lateness.made_without_barrier(replace(made, problem=problem)) is None


@pytest.mark.parametrize(
    ("held", "limit", "peaks", "expected"),
    [
        (4000.0, 10000.0, (32000, 12000), "rank 0 held 3.2x the plan's memory limit (32"),
        (4000.0, 10000.0, (9000, 12000), "rank 1 held 1.2x the plan's memory limit (12"),
        (
            4000.0,
            10000.0,
            (9000, 10010),
            "rank 1 held 10 bytes more than the plan's memory limit (10.01 k bytes, limit 10 k): "
            "maybe messages that it receives ahead, 30 bytes at most, which are not in the plan",
        ),
        (
            4000.0,
            10000.0,
            (9000, 10040),
            "rank 1 held 40 bytes more than the plan's memory limit (10.04 k bytes, limit 10 k)",
        ),
        (4000.0, 10000.0, (9000, 10000), None),
        (4000.0, float("inf"), (9000, 10000), None),
        (1.0, 2.0, (9000, 10000), None),  # counted in microbatches
    ],
)
def test_a_peak_above_the_limit(
    held: float, limit: float, peaks: tuple[int, int], expected: str | None
) -> None:
    plan = lasting(5.0)
    stages = tuple(
        replace(stage, m_b=held, activation_bytes=15.0) for stage in plan.problem.profile.stages
    )
    profile = replace(plan.problem.profile, stages=stages)
    problem = replace(plan.problem, profile=profile, memory_limit=(limit, limit))
    program = compile_schedule(replace(plan, problem=problem, timing=None))
    found = lateness.over_the_limit(program, peaks)
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert found.startswith(expected)
        assert ("ahead" in found) == (peaks == (9000, 10010))
