"""Recomputation and offload: independent implementations agree, and small hand-computed cases."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pipeloom.ir import (
    InvalidScheduleError,
    Link,
    Profile,
    Schedule,
    StageProfile,
    dump_schedule,
    parse_schedule,
    simulate,
    timed,
    verify_schedule,
)
from pipeloom.report import attribute
from tests.support.by_hand import by_hand
from tests.support.iterations import play_iterations
from tests.support.random_schedules import lever_schedules


@given(lever_schedules())
def test_the_verifier_and_the_replay_agree_with_the_simulator(schedule: Schedule) -> None:
    schedule = timed(schedule)
    document = dump_schedule(schedule)
    assert verify_schedule(document) == []
    again = parse_schedule(document, "it")
    assert again.known_timing.work == pytest.approx(schedule.known_timing.work)
    played = play_iterations(schedule).timings[0]
    for rank in range(schedule.problem.ranks):
        assert played.start[rank].tolist() == pytest.approx(
            schedule.known_timing.start[rank].tolist()
        )


@given(lever_schedules())
def test_a_run_as_planned_lost_nothing(schedule: Schedule) -> None:
    """Copies do not count as compute, and an op that waits for a copy waits for an input."""
    schedule = timed(schedule)
    found = attribute(schedule, schedule)
    assert found.measured == found.planned
    assert sum(row.compute for row in found.ranks) == pytest.approx(
        schedule.known_timing.work, abs=1e-6
    )
    for row in found.ranks:
        parts = row.compute + row.waiting + row.receive + row.host
        assert parts == pytest.approx(found.measured, abs=1e-6)


@given(lever_schedules(), st.randoms(use_true_random=False))
def test_a_lever_op_that_is_lost_or_comes_too_late_is_found(
    schedule: Schedule, random: Random
) -> None:
    rows = [schedule.ops(rank) for rank in range(schedule.problem.ranks)]
    places = [(r, i) for r, row in enumerate(rows) for i, op in enumerate(row) if op.kind > 3]
    assume(places)
    document = dump_schedule(timed(schedule))
    rank, i = random.choice(places)
    entry = document["order"][rank].pop(i)
    if entry["op"] == "R" or random.random() < 0.5:  # after its B
        document["order"][rank].append(entry)
    assert verify_schedule(document) != []


def one_stage(order: str, **options: Any) -> Schedule:
    stage = StageProfile(2.0, 3.0, 1.0, m_b=10.0, m_w=4.0, **options)
    return by_hand(order, profile=Profile((stage,), 1, host_link=Link(0.0, 1e-6)), limit=10.0)


def test_recomputing_by_hand() -> None:
    """F 0-2, 2-4; R 4-6; B 6-9; W 9-10; then R, B and W of the other microbatch."""
    timing = simulate(one_stage("0F0 0F1 0R0 0B0 0W0 0R1 0B1 0W1", t_r=2.0, m_r=1.0))
    assert timing.end[0].tolist() == [2, 4, 6, 9, 10, 12, 15, 16]
    assert timing.peak_memory == (11.0,)  # M_B of one microbatch, the input of the other
    assert timing.work == 16.0


def test_offloading_by_hand() -> None:
    """O 0 runs from 2 to 5, in parallel with F 1; L 0 runs in parallel with W 1."""
    order = "0F0 0F1 0O0 0B1 0L0 0W1 0B0 0W0"
    timing = simulate(one_stage(order, m_o=1.0, offload_bytes=3.0))
    starts = dict(zip(order.split(), timing.start[0].tolist(), strict=True))
    assert starts == {
        "0F0": 0.0, "0F1": 2.0, "0O0": 2.0, "0B1": 5.0, "0L0": 8.0, "0W1": 8.0, "0B0": 11.0, "0W0": 14.0,  # noqa: E501
    }  # fmt: skip
    assert timing.peak_memory == (20.0,)
    assert timing.work == 12.0
    assert timing.period == 15.0


@pytest.mark.parametrize(
    ("order", "why"),
    [
        ("0F0 0R0 0O0 0L0 0B0 0W0", "expected at most one R, or one O and one L"),
        ("0F0 0O0 0B0 0W0", "expected at most one R, or one O and one L"),
        ("0F0 0R0 0B0 0W0", "stage 0: the profile has no t_r for it"),
    ],
)
def test_what_cannot_be_is_named(order: str, why: str) -> None:
    with pytest.raises(InvalidScheduleError, match=why):
        simulate(one_stage(order, m_o=1.0))
