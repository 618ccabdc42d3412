"""Constructors: what they build is valid, within memory, and costs what they say."""

from __future__ import annotations

from dataclasses import replace

from pipeloom.ir import Placement, Problem, Profile, StageProfile, Status
from pipeloom.solver import Method, build_family, solve

# schedules that published ones do not reach, and ends that meet a bound --------------------------


def folded(limit: float) -> Problem:
    """Four ranks, two chunks each in a V."""
    profile = Profile((StageProfile(14.4, 14.4, 9.7, 1.0, 0.43),) * 8, 4, 1.6)
    return Problem(profile, 16, Placement.v(4), (limit,) * 4)


def test_below_p_m_b_the_published_v_is_beaten() -> None:
    problem = folded(6.0)
    published = build_family("v-half", problem.profile, 16, memory_limit=6.0)
    schedule = solve(problem, solver="heuristic", work_limit=30.0)
    assert schedule.known_timing.period < 0.97 * published.known_timing.period


def test_zb_h1_is_met_however_few_microbatches() -> None:
    profile = Profile((StageProfile(1.0, 1.0, 1.0),) * 6, 6)
    for microbatches in (4, 6, 12):
        problem = Problem.linear(profile, microbatches)
        found = solve(problem, solver="heuristic", should_stop=lambda: True)
        built = build_family("zb-h1", profile, microbatches)
        assert found.known_timing.period <= built.known_timing.period * (1 + 1e-9)


def test_the_end_of_zb_v_meets_the_bound_of_the_last_forward() -> None:
    stage = StageProfile(6.763, 6.969, 5.251, 1.0, 0.4324)
    zb_v = build_family("zb-v", Profile((stage,) * 32, 16, 0.755), 40)
    problem = replace(zb_v.problem, memory_limit=(32.0,) * 16)
    found = solve(problem, solver="heuristic", work_limit=20)
    assert found.known_report.method == Method.TAIL
    assert found.known_report.status is Status.OPTIMAL
    assert found.known_timing.period < zb_v.known_timing.period / 1.0004
