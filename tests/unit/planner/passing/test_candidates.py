"""What may travel on a cluster, and the schedules of each way."""

from __future__ import annotations

from functools import partial

from pipeloom import (
    Objective,
    Problem,
    Profile,
    Schedule,
    StageProfile,
    dump_schedule,
    verify_schedule,
)
from pipeloom import solve as optimize
from pipeloom.planner.passing.candidates import Activations, Scheme, in_a_row, schemes
from tests.support.inner import Link, Links, Passing

SLOW = Link(0.5, 0.01)
STAGE = StageProfile(1.0, 1.0, 1.0, 1.0, 0.5, 1e4, 1e4, 1e4, 2e4)
solve = partial(optimize, solver="heuristic", work_limit=0.02)


def profile(ranks: int, stages: int | None = None, *slow: tuple[int, int]) -> Profile:
    links = Links(Link(0.01, 1.0), tuple((a, b, SLOW) for a, b in slow))
    return Profile((STAGE,) * (stages or ranks), ranks, links=links)


def posed(profile: Profile, microbatches: int, limit: float | None = None) -> list[Scheme]:
    return schemes(profile, microbatches, limit, Objective.PERIOD)


def test_which_there_are() -> None:
    all_three = ["activations", "weights", "fsdp"]
    assert [scheme.name for scheme in posed(profile(3), 3)] == all_three
    # two stages: a rank of four would have none
    assert [scheme.name for scheme in posed(profile(4, 2), 3)] == ["weights", "fsdp"]


def test_a_row_begins_where_it_leaves_out_the_slowest_link() -> None:
    assert in_a_row(profile(4)).owners == (0, 1, 2, 3)
    assert in_a_row(profile(4)).name == "linear"
    assert in_a_row(profile(4, 4, (3, 0))).owners == (0, 1, 2, 3)
    assert in_a_row(profile(4, 4, (1, 2))).owners == (2, 3, 0, 1)
    assert in_a_row(profile(3, 5, (0, 1))).owners == (1, 1, 2, 2, 0)


def test_optimized_pipelines_keep_the_room_they_are_given() -> None:
    scheme = next(s for s in posed(profile(4, 8), 8) if s.name == "activations")
    room = (9.0,) * 4
    for schedule in scheme.optimized(solve, room):
        assert schedule.problem.memory_limit == room
        assert verify_schedule(dump_schedule(schedule)) == []


def test_a_row_of_one_stage_a_rank_keeps_the_optimizers_certificate() -> None:
    asked: list[Problem] = []

    def look(problem: Problem) -> Schedule:
        asked.append(problem)
        return solve(problem)

    scheme = posed(profile(4, 4, (1, 2)), 8)[0]
    (schedule,) = scheme.optimized(look, scheme.problem.memory_limit)
    assert asked == [scheme.problem]
    assert schedule.known_report.known_bound
    assert schedule.problem.placement.passing is Passing.ACTIVATIONS


def test_chunks_count_among_activations_where_the_profile_has_them() -> None:
    def families(scheme: Scheme) -> set[str]:
        reports = [schedule.report for schedule in scheme.built()]
        return {report.family.partition(":")[0] for report in reports if report}

    assert {"interleaved-1f1b", "zb-v", "1f1b"} <= families(posed(profile(2, 4), 4)[0])
    assert "zb-v" not in families(posed(profile(4), 4)[0])
    assert isinstance(posed(profile(4), 4)[0], Activations)
