"""Heuristics and local search: better than published schedules, bounds that are attained, methods
and pairs that improve schedules, valid orders."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeloom import explain
from pipeloom.ir import (
    Objective,
    Placement,
    Problem,
    Profile,
    StageProfile,
    Status,
    dump_schedule,
    verify_schedule,
)
from pipeloom.solver import Method, build_family, lower_bound, objective_cost, solve, within_memory
from tests.support.large_problems import large_problem

# constructive heuristics: better than published schedules, and attained bounds
# ----------------------


def folded(limit: float) -> Problem:
    """Four ranks with two chunks each, in a V."""
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


# schedules found with little work, each by its method
# -----------------------------------------------


UNIT = StageProfile(1.0, 1.0, 1.0, 1.0, 0.5)
LONGER_B = StageProfile(6.0, 6.5, 4.5, m_b=1.05, m_w=0.6)
UNEQUAL = tuple(StageProfile(9.3 + 0.7 * s, 11.1 - 0.3 * s, 8.2, 1.0, 0.5) for s in range(6))
WHOLE, LIGHT = (StageProfile(n * 5.7, n * 6.4, n * 5.0, n, n) for n in (4.0, 3.0))
LIGHT_ENDS = (LIGHT, *(WHOLE,) * 4, LIGHT, *(WHOLE,) * 6)
"""The first and last of six ranks have one layer less in the first half."""


def in_a_v(stages: tuple[StageProfile, ...], microbatches: int, limit: float) -> Problem:
    ranks = len(stages) // 2
    return Problem(Profile(stages, ranks, 0.4), microbatches, Placement.v(ranks), (limit,) * ranks)


def without_stages(ranks: int, limit: float) -> Problem:
    """Two of the ranks run all stages."""
    placement = Placement.of_stages((0, 1, 1, 0, 0, 1, 1, 0))
    problem = replace(large_problem("makespan", 0), placement=placement, objective=Objective.PERIOD)
    return replace(problem, memory_limit=(limit,) * ranks)


def fused() -> Problem:
    problem = large_problem("remat", 1)
    stages = (
        replace(s, t_r=None, m_r=None, t_bw=0.9 * (s.t_b + s.t_w)) for s in problem.profile.stages
    )
    return replace(problem, profile=replace(problem.profile, stages=tuple(stages)))


FOUND = [
    (Method.WARM_START, Problem.linear(Profile((UNIT,) * 3, 3, 0.1), 6, 3.0), 1.0),
    (Method.ANNEAL, in_a_v((LONGER_B,) * 6, 7, 7.0), 1.02),
    (Method.LIST, large_problem("two copies", 0), 1.33),
    (Method.FILL, without_stages(4, 6.0), 1.03),
    (Method.SPLICE, large_problem("interleaved", 0), 1.2),
    (Method.ROUNDS, Problem.linear(Profile(UNEQUAL, 6, 0.5), 60, 8.0), 1.0),
    (Method.LIST, Problem.linear(Profile(UNEQUAL, 6, 0.5), 204, 4.0), 1.1),
    # 7 of the 8 chunks that V-Half holds fit; V-Min is slower in every period
    (Method.PERIODIC, in_a_v(LIGHT_ENDS, 72, 28.4), 1.03),
    (Method.ANNEAL, fused(), 1.0),
    (Method.WHOLE_STAGES, large_problem("offload", 1), 1.45),
]


@pytest.mark.parametrize(("method", "problem", "most"), FOUND)
def test_the_method_finds_what_memory_allows(method: Method, problem: Problem, most: float) -> None:
    seen = set[str]()
    found = solve(
        problem, solver="heuristic", work_limit=20, progress=lambda each: seen.add(each.method)
    )
    assert method in seen
    assert verify_schedule(dump_schedule(found)) == []
    assert within_memory(problem, found.known_timing)
    assert objective_cost(found) <= most * lower_bound(problem).value * (1 + 1e-9)


# pairs: an F and a BW that run at once, if the profile has their times
# ------------------------------


CHUNK = StageProfile(1.0, 1.2, 0.8, 1.0, 0.5, t_fb=2.25)


@pytest.mark.parametrize("solver", ["auto", "heuristic"])
@pytest.mark.parametrize("limit", [5.0, 8.0])
def test_optimize_pairs_no_worse_than_dualpipev(solver: str, limit: float) -> None:
    built = build_family("dualpipev", Profile((CHUNK,) * 4, 2, 0.1), 8)
    problem = replace(built.problem, memory_limit=(limit,) * 2)
    found = solve(problem, solver=solver, work_limit=4)
    assert any(found.pairs)
    assert found.known_report.known_bound <= found.known_timing.period <= built.known_timing.period
    assert solver != "auto" or found.known_timing.period < built.known_timing.period
    assert verify_schedule(dump_schedule(found)) == []
    assert max(found.known_timing.peak_memory) <= limit
    explained = explain(found)
    assert "with pairs" in explained.reason.words[-1]
    assert sum(loss.work for loss in explained.losses) == pytest.approx(found.known_timing.work)


def test_a_pair_that_costs_is_not_made() -> None:
    profile = Profile((replace(CHUNK, t_fb=3.5),) * 4, 2, 0.1)
    problem = Problem(profile, 4, Placement.wave(2, 1), (8.0,) * 2)
    assert not any(solve(problem, work_limit=1).pairs)


def test_two_copies_of_the_weights_run_in_pairs_no_worse_than_dualpipe() -> None:
    built = build_family("dualpipe", Profile((CHUNK,) * 4, 4, 0.1), 8)
    found = solve(replace(built.problem, memory_limit=(5.0,) * 4), work_limit=2)
    assert any(found.pairs)
    assert found.known_report.known_bound <= found.known_timing.period <= built.known_timing.period
    assert verify_schedule(dump_schedule(found)) == []
