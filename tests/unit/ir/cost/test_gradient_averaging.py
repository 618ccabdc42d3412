"""Averaging over replicas of the pipeline: its cost, verification, drawing and search."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipeloom import show
from pipeloom.ir import (
    DataParallel,
    Link,
    Links,
    Objective,
    Profile,
    Schedule,
    StageProfile,
    step_time,
    timed,
)
from pipeloom.report import timeline_svg, trace_events
from pipeloom.solver import build_family
from tests.support.by_hand import by_hand

REPLICAS = DataParallel(4, Link(0.5, 1.0))  # 8e6 bytes: 6 rounds of .5 + 2 ms


def profile(gradient: float = 8e6) -> Profile:
    stage = StageProfile(2.0, 2.0, 1.5, 1.0, 0.5, t_fb=4.0, weight_bytes=1e6, grad_bytes=gradient)
    return Profile((stage,) * 2, 2, t_comm=0.1, data_parallel=REPLICAS)


def chunked(order: str) -> Schedule:
    """Two stages on one rank."""
    stage = StageProfile(1.0, 1.0, 2.0, grad_bytes=8e6)
    one = Profile((stage,) * 2, 1, data_parallel=DataParallel(2, Link(0.0, 4.0)))  # 2 ms each
    return timed(by_hand(order, profile=one))


FORWARD = "0F0 1F0 0F1 1F1 1B0 0B0 1B1 0B1 "  # 8 ms


def test_a_stage_is_averaged_once_its_last_w_has_ended() -> None:
    timing = chunked(FORWARD + "0W0 0W1 1W0 1W1").known_timing
    assert [(a.stage, a.start, a.end) for a in timing.averages[0]] == [(0, 12, 14), (1, 16, 18)]
    assert timing.period == 16.0
    assert {timing.iteration_time(objective) for objective in Objective} == {18.0}
    assert timing.exposed(Objective.PERIOD) == 2.0


def test_iterations_wait_for_it() -> None:
    """With one stage per rank nothing overlaps; with two, the first one's averaging does."""
    schedule = build_family("1f1b", profile(), 4)
    alone = replace(schedule.problem.profile, data_parallel=None)
    plain = replace(schedule, problem=replace(schedule.problem, profile=alone))
    assert step_time(schedule) == pytest.approx(step_time(plain) + 15.0)
    assert step_time(chunked(FORWARD + "0W0 0W1 1W0 1W1")) == pytest.approx(18.0)
    assert step_time(chunked(FORWARD + "0W0 1W0 1W1 0W1")) == pytest.approx(18.0)


def test_pictures_show_it(tmp_path: Path) -> None:
    schedule = build_family("zb-v", profile(), 4)
    svg = timeline_svg([("plan", schedule)])
    assert svg.count("average of stage") == 4
    assert "gradients averaged over replicas" in svg
    names = [event["name"] for event in trace_events([("", schedule)])["traceEvents"]]
    assert {f"average {stage}" for stage in range(4)} <= set(names)
    text = str(show(schedule))
    assert "of averaging left after ops" in text
    rows = [line for line in text.splitlines() if line.strip().startswith("avg")]
    assert [("A3" in row, "A2" in row) for row in rows] == [(True, False), (False, True)]


def test_waiting_for_gradients_is_told_apart() -> None:
    """A gradient arrives after the owner's last op, and is averaged afterwards."""
    alone = build_family("1f1b", profile(), 4)
    words = "15 ms of averaging left after ops (of 15 ms at most on a rank), iteration"
    assert words in " ".join(str(show(alone)).split())
    slow = replace(profile(), t_comm=None, links=Links(Link(1.0, 1.0)))
    schedule = timed(build_family("fsdp", slow, 4))
    busy = max(sum(one.end - one.start for one in row) for row in schedule.known_timing.averages)
    assert schedule.known_timing.exposed(Objective.PERIOD) > busy
    words = "(of 15 ms at most on a rank, the rest waits for gradients), iteration"
    assert words in " ".join(str(show(schedule)).split())
