"""Explanations agree with the bounds, losses sum to the cost, and the gains of memory and links are
real."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from pipeloom import (
    Placement,
    Problem,
    Profile,
    Schedule,
    StageProfile,
    build_family,
    explain,
    solve,
    verify,
)
from pipeloom.ir import Link, Links, timed
from pipeloom.planner import certificate
from pipeloom.solver import lower_bound, one_at_a_time
from tests.support.by_hand import by_hand
from tests.support.table5 import ROWS

STAGE = StageProfile(1.0, 1.0, 1.0, 1.0, 0.5)
FAST = ["links twice as fast", "links without delay"]


def explained(problem: Problem) -> Any:
    """The explanation of a schedule that runs one microbatch after the other."""
    return explain(timed(Schedule(problem, one_at_a_time(problem))), seconds=0.0)


def linear(times: tuple[float, ...], t_comm: float, microbatches: int, limit: float) -> Problem:
    stages = tuple(StageProfile(t, t, t) for t in times)
    return Problem.linear(Profile(stages, len(times), t_comm), microbatches, limit)


def limited(problem: Problem, limit: float) -> Problem:
    return replace(problem, memory_limit=(limit,) * problem.ranks)


def test_the_head_and_the_tail_of_rank_0_are_why() -> None:
    reason = explained(ROWS["6.2B-24"].problem(1.0)).reason
    assert (reason.name, reason.rank) == ("moments", 0)
    assert reason.words == (
        "rank 0 computes for 1898.1 ms and idles at least 289.4 ms, because of these moments:",
        "the first F of stage 7 is at least 211.72 ms after the first F of stage 0",
        "the first B of stage 7 is at least 29.718 ms after the first F of stage 7",
        "the first B of stage 0 is at least 209.8 ms after the first B of stage 7",
        "the last F of stage 0 is at least 1235.7 ms after the first B of stage 0, as the rank has "
        "to compute in between",
        "the last F of stage 7 is at least 211.72 ms after the last F of stage 0",
        "the end of the last B of stage 7 is at least 59.162 ms after the last F of stage 7",
        "the end of the last B of stage 0 is at least 209.8 ms after the end of the last B of "
        "stage 7",
        "the end of the rank with stage 0 is at least 19.927 ms after the end of the last B of "
        "stage 0",
    )


def test_the_busiest_rank_is_why_where_memory_is_ample() -> None:
    reason = explained(linear((1.0, 3.0), 0.0, 6, math.inf)).reason
    assert reason.rank == 1
    assert reason.words == (
        "rank 1 computes for 54 ms and runs one op at a time",
        "no order helps, only another cut or placement: shared out evenly, each rank would compute "
        "for 36 ms",
    )
    for family, ranks in (("1f1b", 1), ("fsdp", 2)):  # the lower bound is the time of its backwards
        profile = Profile((StageProfile(1.0, 1.0, 1.0, t_bw=1.5),) * ranks, ranks, 0.0)
        reason = explain(build_family(family, profile, 6), seconds=0.0).reason
        assert reason.value == 15.0
        assert reason.words == ("rank 0 computes for 15 ms and runs one op at a time",)


def test_losses_of_a_schedule_by_hand() -> None:
    """Two ranks, unit times, one microbatch at a time on rank 0::

    rank 0   F0 F1 .  B0 .  B1 W0 W1
    rank 1      F0 B0 F1 B1 W0 W1
    """
    rows = "0F0 0F1 0B0 0B1 0W0 0W1", "1F0 1B0 1F1 1B1 1W0 1W1"
    found = explain(by_hand(*rows, profile=Profile((STAGE,) * 2, 2, 0.0)), seconds=0.0).losses
    assert [(x.work, x.head, x.between, x.tail, x.spare) for x in found] == [
        (6.0, 1.0, 0.0, 1.0, 0.0),
        (6.0, 0.0, 0.0, 0.0, 2.0),
    ]


def test_what_more_memory_and_faster_links_buy() -> None:
    """With more memory or faster links, no schedule costs more than the same order."""
    tight = ROWS["6.2B-24"].problem(1.0)
    schedule = solve(tight, time_limit=1.0)
    found = explain(schedule, seconds=0.1)
    everywhere, *links, _ = found.changes
    assert [change.what for change in links] == FAST
    costs = [change.cost or math.inf for change in (everywhere, *links)]
    assert max(costs) <= schedule.known_timing.period
    for change, cost in zip(found.changes, costs, strict=False):
        work = tight.microbatches * sum(s.t_f + s.t_b + s.t_w for s in tight.profile.stages)
        assert change.bound <= cost * (1 + 1e-9)
        assert change.bubble == pytest.approx(1 - work / (tight.ranks * cost))
    step = tight.profile.stages[0].m_b
    assert everywhere.bound == lower_bound(limited(tight, tight.memory_limit[0] + step)).value
    stopped = explain(schedule, seconds=5.0, should_stop=lambda: True)
    assert {change.cost for change in stopped.changes} == {None}
    free = explain(solve(ROWS["6.2B-24"].problem(math.inf), time_limit=0.1), seconds=0.0)
    assert [each.what for each in free.changes] == [*FAST, "twice the microbatches"]


def test_room_for_one_more_microbatch_is_that_of_the_largest_stage() -> None:
    profile = Profile((replace(STAGE, m_b=2.0), replace(STAGE, m_b=3.0)) * 2, 2, 0.1)
    two = Problem(profile, 6, Placement.interleaved(2, 2), (5.0, 9.0))
    more = explained(two).changes[0]
    assert more.what == "room for one more microbatch on every rank"
    assert more.bound == lower_bound(replace(two, memory_limit=(7.0, 12.0))).value


SENDS = (replace(STAGE, activation_bytes=2e6),) * 2


@pytest.mark.parametrize(
    "profile",
    [
        Profile(SENDS, 2, 4.0),
        Profile(SENDS, 2, ((0.0, 4.0), (5.0, 0.0))),
        Profile(SENDS, 2, links=Links(Link(0.5, 1.0), ((0, 1, Link(1.0, 0.5)),))),
    ],
)
def test_links_get_faster_however_they_are_given(profile: Profile) -> None:
    """One microbatch, forward and back: all of its messages count."""
    found = explained(Problem.linear(profile, 1))
    twice, free = (next(x.bound for x in found.changes if x.what == what) for what in FAST)
    assert found.reason.value - twice == pytest.approx(twice - free)
    assert free == pytest.approx(5.0)


def test_even_stages_and_more_microbatches_are_tried_and_vain_changes_are_no_rows() -> None:
    told = explain(solve(linear((1.0, 1.0, 2.0, 1.0), 0.1, 8, 8.0), time_limit=0.5), seconds=0.1)
    even, more = told.changes[-2:]
    assert (even.what, more.what) == ("the same work on every rank", "twice the microbatches")
    assert (even.gains(told.now), more.gains(told.now)) == (True, False)
    alike = explain(solve(linear((1.0, 1.0), 0.1, 2, 1.0), time_limit=0.2), seconds=0.1)
    assert alike.changes[-1].gains(alike.now)
    ample = explain(solve(linear((1.0, 1.0), 0.5, 4, 100.0), time_limit=0.1), seconds=0.05)
    assert "nothing better was found with room for one more microbatch on every rank" in str(ample)


def test_a_certificate_that_proves_less_says_what_is_claimed() -> None:
    """The claimed bound does not affect what is proven; for a bound over several stages, the best
    weaker argument is given."""
    profile = Profile((STAGE,) * 2, 2, t_comm=0.1)
    schedule = solve(Problem.linear(profile, 3, 2.0), time_limit=5.0)
    report = schedule.known_report
    over = replace(report, lower_bound=1.1 * report.known_bound)
    proven, less = certificate(schedule), certificate(replace(schedule, report=over))
    assert "claimed" not in proven
    assert less["claimed"] == over.lower_bound
    assert less["lower_bound"] == pytest.approx(proven["lower_bound"])
    assert verify(schedule, certificate=proven | {"claimed": 1e6}).violations == []
    v = Problem(Profile((STAGE,) * 4, 2, t_comm=0.1), 4, Placement.v(2), (3.0,) * 2)
    schedule = solve(v, work_limit=1.0)
    found = certificate(schedule)
    assert found["argument"] == {"kind": "work", "rank": 0}
    assert found["lower_bound"] == pytest.approx(24.0)
    assert found["claimed"] == schedule.known_report.lower_bound
