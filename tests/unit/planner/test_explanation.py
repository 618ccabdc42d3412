"""Explanations agree with the bounds, and certificates with what they claim."""

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
from pipeloom.ir import timed
from pipeloom.planner import certificate
from pipeloom.solver import one_at_a_time
from tests.support.by_hand import by_hand
from tests.support.table5 import ROWS

STAGE = StageProfile(1.0, 1.0, 1.0, 1.0, 0.5)


def explained(problem: Problem) -> Any:
    """The explanation of a schedule that runs one microbatch after the other."""
    return explain(timed(Schedule(problem, one_at_a_time(problem))))


def linear(times: tuple[float, ...], t_comm: float, microbatches: int, limit: float) -> Problem:
    stages = tuple(StageProfile(t, t, t) for t in times)
    return Problem.linear(Profile(stages, len(times), t_comm), microbatches, limit)


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
        "no order helps, only another cut or placement: if it shared the work equally, "
        "each rank would compute for 36 ms",
    )
    for family, ranks in (("1f1b", 1), ("fsdp", 2)):  # the lower bound is the time of its backwards
        profile = Profile((StageProfile(1.0, 1.0, 1.0, t_bw=1.5),) * ranks, ranks, 0.0)
        reason = explain(build_family(family, profile, 6)).reason
        assert reason.value == 15.0
        assert reason.words == ("rank 0 computes for 15 ms and runs one op at a time",)


def test_losses_of_a_schedule_by_hand() -> None:
    """Two ranks, unit times, one microbatch at a time on rank 0::

    rank 0   F0 F1 .  B0 .  B1 W0 W1
    rank 1      F0 B0 F1 B1 W0 W1
    """
    rows = "0F0 0F1 0B0 0B1 0W0 0W1", "1F0 1B0 1F1 1B1 1W0 1W1"
    found = explain(by_hand(*rows, profile=Profile((STAGE,) * 2, 2, 0.0))).losses
    assert [(x.work, x.head, x.between, x.tail, x.spare) for x in found] == [
        (6.0, 1.0, 0.0, 1.0, 0.0),
        (6.0, 0.0, 0.0, 0.0, 2.0),
    ]


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
