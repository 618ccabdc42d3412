"""Recomputed and offloaded activations: two readings of the rules agree, and a small case by
hand."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeloom.compiler import compile_schedule
from pipeloom.ir.cost.simulator import simulate, timed
from pipeloom.ir.cost.steady_state.steady_state import play_iterations
from pipeloom.ir.errors import InvalidScheduleError
from pipeloom.ir.formats import dump_program, dump_schedule, parse_schedule
from pipeloom.ir.model.links import Link
from pipeloom.ir.model.ops import Op, OpKind, parse_order
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Level, Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.verify.program import verify_program
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.report.attribution import attribute
from tests.support.random_schedules import random_order

TIMES = st.sampled_from([0.0, 0.1, 1.0, 1.7, 3.0])
SHARES = st.sampled_from([0.0, 0.25, 1.0])


@st.composite
def levels(draw: st.DrawFn) -> dict[str, Any]:
    """One level of recomputation, or several."""
    each = [(draw(TIMES), 8.0 * draw(SHARES)) for _ in range(draw(st.integers(1, 3)))]
    if len(each) == 1:
        return dict(zip(("t_r", "m_r"), each[0], strict=True))
    return {"levels": tuple(Level(f"level {k}", *one) for k, one in enumerate(each))}


@st.composite
def lever_schedules(draw: st.DrawFn) -> Schedule:
    """Up to 3 ranks, 5 stages and 4 microbatches, of which any are recomputed, at any level, or
    offloaded."""
    ranks = draw(st.integers(1, 3))
    owners = draw(st.lists(st.integers(0, ranks - 1), min_size=1, max_size=5))
    stages = [
        StageProfile(
            *draw(st.tuples(TIMES, TIMES, TIMES)),
            m_b=8.0,
            m_w=8.0 * draw(SHARES),
            **draw(levels()),
            m_o=8.0 * draw(SHARES),
            offload_bytes=draw(TIMES),
            t_bw=draw(st.none() | TIMES),
        )
        for _ in owners
    ]
    link = Link(draw(TIMES), 1e-6)
    profile = Profile(tuple(stages), ranks, t_comm=draw(TIMES), host_link=link)
    placement = Placement.of_stages(tuple(owners))
    problem = Problem(profile, draw(st.integers(1, 4)), placement, profile.limit_from(None))
    random = Random(draw(st.integers(0, 2**32)))
    order = random_order(problem, draw(st.sampled_from([0.0, 0.5])), random)
    return Schedule.of(problem, [_pulled(row, problem, random) for row in order], "random")


def _pulled(row: list[Op], problem: Problem, random: Random) -> list[Op]:
    """``row`` with levers pulled here and there, each op of theirs anywhere it may be."""
    for op in [op for op in row if op.kind is OpKind.F]:
        lever = random.choice([(), (OpKind.R,), (OpKind.O, OpKind.L)])
        at = row.index(op)
        for kind in lever:
            at = random.randint(at + 1, _backward(row, op))
            number = len(problem.profile.stages[op.stage].all_levels)
            level = random.randrange(number) if kind is OpKind.R else 0
            row.insert(at, Op(kind, op.stage, op.microbatch, level))
    return row


def _backward(row: list[Op], forward: Op) -> int:
    same = (forward.stage, forward.microbatch)
    kinds = (OpKind.B, OpKind.BW)
    return next(
        i for i, op in enumerate(row) if op.kind in kinds and (op.stage, op.microbatch) == same
    )


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
    """Copies are no compute of their rank, and what waits for them waits for an input."""
    schedule = timed(schedule)
    found = attribute(schedule, schedule)
    assert found.measured == found.planned
    assert found.causes.total - found.slack == pytest.approx(0.0, abs=1e-6)
    assert sum(row.compute for row in found.ranks) == pytest.approx(
        schedule.known_timing.work, abs=1e-6
    )
    for row in found.ranks:
        parts = row.compute + row.waiting + row.receive + row.host
        assert parts == pytest.approx(found.measured, abs=1e-6)


@given(lever_schedules())
def test_programs_of_them_are_valid(schedule: Schedule) -> None:
    assert verify_program(dump_program(compile_schedule(schedule))) == []


@given(lever_schedules(), st.randoms(use_true_random=False))
def test_a_lever_op_that_is_lost_or_comes_too_late_is_found(
    schedule: Schedule, random: Random
) -> None:
    rows = [schedule.ops(rank) for rank in range(schedule.problem.ranks)]
    places = [(r, i) for r, row in enumerate(rows) for i, op in enumerate(row) if op.kind > 3]
    if not places:
        return
    document = dump_schedule(timed(schedule))
    rank, i = random.choice(places)
    entry = document["order"][rank].pop(i)
    if entry["op"] == "R" or random.random() < 0.5:  # behind its B
        document["order"][rank].append(entry)
    assert verify_schedule(document) != []


def problem(**stage: Any) -> Problem:
    profile = Profile(
        (StageProfile(2.0, 3.0, 1.0, m_b=10.0, m_w=4.0, **stage),), 1, host_link=Link(0.0, 1e-6)
    )
    return Problem(profile, 2, Placement.linear(1), (10.0,))


def test_recomputing_by_hand() -> None:
    """F 0-2, 2-4; R 4-6; B 6-9; W 9-10; then B of the other."""
    order = parse_order("0F0 0F1 0R0 0B0 0W0 0R1 0B1 0W1")
    timing = simulate(Schedule.of(problem(t_r=2.0, m_r=1.0), [order], ""))
    assert timing.end[0].tolist() == [2, 4, 6, 9, 10, 12, 15, 16]
    assert timing.peak_memory == (11.0,)  # M_B of the one, the input of the other
    assert timing.work == 16.0


LEVELS = (Level("attention", 0.5, 6.0), Level("full", 2.0, 1.0))


def test_levels_by_hand() -> None:
    """As above, but that the other is recomputed in part, which keeps more and takes less."""
    order = parse_order("0F0 0F1 0R0@1 0B0 0W0 0R1 0B1 0W1")
    schedule = timed(Schedule.of(problem(levels=LEVELS), [order], ""))
    assert schedule.known_timing.end[0].tolist() == [2, 4, 6, 9, 10, 10.5, 13.5, 14.5]
    assert schedule.known_timing.peak_memory == (16.0,)
    again = parse_schedule(dump_schedule(schedule), "it")
    assert again.ops(0) == order
    assert again.problem.profile == schedule.problem.profile


def test_a_level_that_is_changed_in_a_file_is_found() -> None:
    order = parse_order("0F0 0R0@1 0B0 0W0 0F1 0B1 0W1")
    document = dump_schedule(timed(Schedule.of(problem(levels=LEVELS), [order], "")))
    document["memory_limit"] = [10.0]
    assert verify_schedule(document) == []
    document["order"][0][1]["level"] = 0
    (line,) = [line for line in verify_schedule(document) if "ends" in line]
    assert line == "rank 0 ends 0R0 (op 1) at 4, expected 2.5: its start and its duration"
    document["order"][0][1]["level"] = 2
    assert "0R0@2 runs, but the profile has no level 2 for stage 0" in verify_schedule(document)


def test_a_program_runs_the_level_of_its_schedule() -> None:
    order = parse_order("0F0 0R0@1 0B0 0W0 0F1 0B1 0W1")
    timed_schedule = timed(Schedule.of(problem(levels=LEVELS), [order], ""))
    document = dump_program(compile_schedule(timed_schedule)) | {}
    document["schedule"]["memory_limit"] = [10.0]
    assert verify_program(document) == []
    row = document["instructions"][0]
    row[row.index("0R0@1")] = "0R0"
    assert verify_program(document) == [
        "rank 0 instruction 1 (0R0): the schedule has 0R0@1 as op 1 of this rank"
    ]


def test_offloading_by_hand() -> None:
    """O 0 goes out from 2 to 5 while F 1 runs; B 1 waits for nothing, L 0 comes back beside it."""
    order = parse_order("0F0 0F1 0O0 0B1 0L0 0W1 0B0 0W0")
    timing = simulate(Schedule.of(problem(m_o=1.0, offload_bytes=3.0), [order], ""))
    starts = dict(zip(map(str, order), timing.start[0].tolist(), strict=True))
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
        simulate(Schedule.of(problem(m_o=1.0), [parse_order(order)], ""))


def test_a_level_that_the_profile_has_not_is_named() -> None:
    why = "stage 0: the profile has no level 2 for microbatch 0"
    with pytest.raises(InvalidScheduleError, match=why):
        simulate(Schedule.of(problem(levels=LEVELS), [parse_order("0F0 0R0@2 0B0 0W0")], ""))
