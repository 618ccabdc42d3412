"""Optimizing with recomputation and offload: bounds, and limits that need them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeloom.ir import (
    InfeasibleError,
    Link,
    Objective,
    OpKind,
    Placement,
    Problem,
    Profile,
    Schedule,
    StageProfile,
    Status,
    dump_schedule,
    simulate,
    verify_schedule,
)
from pipeloom.solver import lower_bounds, smallest_limit, solve
from tests.support.large_problems import large_problem
from tests.support.random_schedules import lever_schedules


@settings(max_examples=25)
@given(lever_schedules())
def test_the_smallest_limit_is_kept(schedule: Schedule) -> None:
    limit, _ = smallest_limit(schedule.problem)
    problem = replace(schedule.problem, memory_limit=(limit,) * schedule.problem.ranks)
    found = solve(problem, solver="heuristic", should_stop=lambda: True)
    assert max(found.known_timing.peak_memory) <= limit * (1 + 1e-9)
    if limit > 0:
        below = replace(problem, memory_limit=(limit * 0.99,) * problem.ranks)
        with pytest.raises(InfeasibleError):
            next(lower_bounds(below))


@settings(max_examples=12)
@given(lever_schedules(), st.sampled_from(Objective))
def test_a_start_is_not_lost(schedule: Schedule, objective: Objective) -> None:
    problem = replace(schedule.problem, objective=objective)
    given = simulate(Schedule(problem, schedule.order)).cost(objective)
    found = solve(problem, start=schedule.order, should_stop=lambda: True)
    assert found.known_timing.cost(objective) <= given * (1 + 1e-9)


RECOMPUTED, OFFLOADED = ("t_r", "m_r"), ("m_o", "offload_bytes")
STAGE = StageProfile(4.0, 5.0, 3.0, m_b=10.0, m_w=4.0, t_r=4.0, m_r=1.0, m_o=1.0, offload_bytes=3.0)
PROFILE = Profile((STAGE,) * 4, 2, t_comm=0.5, host_link=Link(0.0, 1e-6))


def posed(profile: Profile, limit: float) -> Problem:
    return Problem(profile, 4, Placement.v(2), (limit,) * 2)


def without(profile: Profile, *keys: str) -> Profile:
    stages = (replace(stage, **dict.fromkeys(keys)) for stage in profile.stages)
    return replace(profile, stages=tuple(stages))


def used(schedule: Schedule) -> set[OpKind]:
    """The kinds of ops that recompute or offload."""
    found = {op.kind for rank in range(schedule.problem.ranks) for op in schedule.ops(rank)}
    return found & {OpKind.R, OpKind.O, OpKind.L}


@pytest.mark.parametrize(
    ("profile", "kinds"),
    [
        (without(PROFILE, *OFFLOADED), {OpKind.R}),
        (without(PROFILE, *RECOMPUTED), {OpKind.O, OpKind.L}),
        (PROFILE, {OpKind.R, OpKind.O, OpKind.L}),
    ],
)
def test_a_limit_that_nothing_else_keeps(profile: Profile, kinds: set[OpKind]) -> None:
    problem = posed(profile, 14.0)
    with pytest.raises(InfeasibleError):
        next(lower_bounds(posed(without(profile, *RECOMPUTED, *OFFLOADED), 14.0)))
    found = solve(problem, work_limit=5.0)
    assert verify_schedule(dump_schedule(found)) == []
    assert set() < used(found) <= kinds
    alone = solve(replace(problem, microbatches=1), work_limit=1.0).known_timing
    assert found.known_timing.period < 0.9 * 4 * alone.period
    again = solve(problem, work_limit=5.0)
    assert [row.tolist() for row in again.order] == [row.tolist() for row in found.order]


def test_where_memory_is_no_matter_no_lever_is_pulled() -> None:
    assert used(solve(posed(PROFILE, 1000.0), work_limit=8.0)) == set()


def test_little_work_has_room_for_the_relaxation() -> None:
    """One round of the list scheduler takes more than this work limit."""
    problem = seeded(0, 21.0)
    alone = replace(problem, profile=without(problem.profile, *OFFLOADED))
    report = solve(alone, work_limit=2.0).known_report
    assert report.bound == "remat-relaxation"
    assert report.status is Status.OPTIMAL


def test_offload_that_frees_no_place_is_proven_of_no_use() -> None:
    found = solve(large_problem("offload", 0), work_limit=8.0)
    assert found.known_report.status is Status.OPTIMAL
    assert used(found) == set()


def seeded(seed: int, limit: float) -> Problem:
    """Three unequal stages, one per rank, with recomputation or with faster or slower offload."""
    random = np.random.default_rng(seed)
    times, copies = random.uniform(2.0, 6.0, (3, 5)), random.uniform(1.0, 6.0, 3)
    stages = [
        StageProfile(f, b, w, 10.0, m_w, t_r=r, m_r=1.0, m_o=1.0, offload_bytes=copy)
        for (f, b, w, r, m_w), copy in zip(times.tolist(), copies.tolist(), strict=True)
    ]
    profile = Profile(tuple(stages), 3, t_comm=0.5, host_link=Link(0.0, 1e-6))
    return Problem(profile, 5, Placement.linear(3), (limit,) * 3)


def test_more_memory_is_never_worse() -> None:
    """Below 2 M_B, schedules without recomputation run one microbatch at a time; from 20 on, they
    are the first ones found."""
    limits = 10.0, 18.0, 20.0, 30.0
    found = [solve(seeded(0, limit), work_limit=1.0) for limit in limits]
    periods = [schedule.timing.period for schedule in found if schedule.timing is not None]
    assert len(periods) == len(limits)
    for less, more in pairwise(periods):
        assert more <= less * (1 + 1e-9), periods
