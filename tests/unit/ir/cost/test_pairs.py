"""Pairs of an F and a BW that run at once: their times, their file, what waits for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipeloom.compiler import compile_schedule
from pipeloom.compiler.exporters import torch_csv
from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.cost.steady_state.steady_state import step_time
from pipeloom.ir.errors import InvalidScheduleError
from pipeloom.ir.formats.schedule_json import dump_schedule, parse_schedule
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.program import Compute, WaitReceive
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.solver.families import build_family
from tests.support.by_hand import by_hand


def profile(ranks: int, share: float = 1.0, t: tuple[float, ...] = (1.0, 1.0, 1.0)) -> Profile:
    """Pairs take ``share`` of what both ops do alone."""
    t_f, t_b, t_w = t
    stage = StageProfile(t_f, t_b, t_w, weight_bytes=1.0, t_fb=share * (t_f + t_b + t_w))
    return Profile((stage,) * ranks, ranks)


def test_a_pair_takes_what_the_stage_that_saves_less_allows() -> None:
    one, other = StageProfile(1.0, 1.0, 1.0, t_fb=2.0), StageProfile(2.0, 2.0, 1.0, t_fb=4.5)
    unknown = StageProfile(1.0, 1.0, 1.0)
    stages = Profile((one, other, unknown, StageProfile(1.0, 1.0, 1.0, t_fb=0.5)), 4)
    assert stages.pair_time(0, 0) == 2.0
    assert stages.pair_time(0, 1) == 1.0 + 3.0 - 0.5
    assert stages.pair_time(1, 0) == 2.0 + 2.0 - 0.5
    assert stages.pair_time(0, 2) == 3.0
    assert stages.pair_time(3, 3) == 2.0  # no less than the BW alone


def paired() -> Schedule:
    """One rank, two microbatches: F0, then F1 with BW0, then BW1."""
    return replace(by_hand("0F0 0F1 0BW0 0BW1", profile=profile(1, 0.75)), pairs=((1,),))


def test_a_pair_starts_and_ends_together_and_is_work_once() -> None:
    timing = simulate(paired())
    assert timing.start[0].tolist() == [0.0, 1.0, 1.0, 3.25]
    assert timing.end[0].tolist() == [1.0, 3.25, 3.25, 5.25]
    assert timing.work == 5.25
    assert timing.peak_memory == (2.0,)
    assert step_time(paired()) == pytest.approx(5.25)


def test_what_is_no_pair_is_named() -> None:
    with pytest.raises(InvalidScheduleError, match="rank 0, op 0: expected an F and the BW of"):
        simulate(replace(paired(), pairs=((0,),)))


def document(**changes: Any) -> dict[str, Any]:
    return dump_schedule(build_family("dualpipe", profile(4, 0.8), 8)) | changes


def test_pairs_are_in_the_file_and_come_back() -> None:
    read = parse_schedule(document(), "s.json")
    assert read.pairs == ((7, 9, 12), (6, 8, 10), (6, 8, 10), (7, 9, 12))
    assert read.problem.profile == profile(4, 0.8)
    assert dump_schedule(replace(read, timing=None))["order"] == document()["order"]
    assert verify_schedule(document()) == []


def test_both_inputs_of_a_pair_are_waited_for_before_it() -> None:
    schedule = build_family("dualpipe", profile(4), 8)
    row = compile_schedule(schedule).instructions[1]
    computes = [at for at, item in enumerate(row) if isinstance(item, Compute)]
    for at in schedule.pairs[1]:
        between = row[computes[at] + 1 : computes[at + 1]]
        assert not any(isinstance(item, WaitReceive) for item in between)


def test_an_export_has_the_f_of_a_pair_before_its_bw() -> None:
    schedule = build_family("dualpipev", profile(4), 8)
    assert any(schedule.pairs)
    text = torch_csv.write(schedule)
    read = torch_csv.read(text, schedule.problem.profile)
    assert [row.tolist() for row in read.order] == [row.tolist() for row in schedule.order]
