"""``analyze --spread`` and ``--slow``: of schedules and schemes, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeloom.ir.formats import dump_schedule
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.planner.analyze import analyze
from pipeloom.planner.build import build
from pipeloom.planner.robustness.late_steps import LateStep
from tests.support.command_line import Command

PROFILE = Profile((StageProfile(2.0, 3.0, 1.5, spread=0.1),) * 4, 4, t_comm=0.1)


def test_a_schedule_is_answered_alone_by_its_profile_s_spread() -> None:
    schedule = build("zb-h1", PROFILE, 8, memory_limit=float("inf"))
    found = analyze(schedule, spread=True)
    assert isinstance(found, LateStep)
    assert found.planned < found.median < found.p95
    again = analyze(dump_schedule(schedule), spread=0.1)
    assert (again.mean, again.ops) == (found.mean, found.ops)
    assert found.ops[0].one_percent >= found.ops[-1].one_percent


def test_of_a_slow_rank_what_it_does_is_felt_most() -> None:
    schedule = build("1f1b", PROFILE, 8, memory_limit=float("inf"))
    found = analyze(schedule, slow={2: 1.5})
    assert found.samples == 1
    assert found.mean == found.p95 > found.planned
    assert {one.rank for one in found.ops[:2]} == {2}


def test_schemes_have_a_row_each() -> None:
    found = analyze(PROFILE, 8, spread=0.05)
    assert [row.name for row in found.late] == [row.name for row in found.built]
    assert "period where op times spread by 5.00 %" in str(found)


WRONG = {
    "S --spread -0.1": "argument --spread: expected a number from 0 to 1",
    "S --spread 1.5": "argument --spread: expected a number from 0 to 1",
    "S --spread nan": "argument --spread: expected a number from 0 to 1",
    "S --spread": "--spread: missing; expected it in the profile, or a number here",
    "S --spread S": "S: expected times that `run --trace` measured, got a plan's",
    "S --spread nothing.json": "nothing.json: no such file",
    "S --slow 4:1.2": "--slow: expected ranks 0..3, got 4",
    "S --slow 1": "argument --slow: expected RANK:X, each rank once and X > 0",
    "S --slow 1:0": "argument --slow: expected RANK:X, each rank once and X > 0",
    "S --slow 1:2,1:3": "argument --slow: expected RANK:X, each rank once and X > 0",
    "S --slow 1:2 -m 3": "-m/--microbatches: expected none beside a schedule",
    "S": "profile: expected --spread or --slow beside a schedule",
}


@pytest.mark.parametrize("line", WRONG)
def test_wrong_input_is_one_line(
    pipeloom: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    profile = Profile((StageProfile(2.0, 3.0, 1.5),) * 4, 4)
    Path("S").write_text(json.dumps(dump_schedule(build("1f1b", profile, 4))))
    found = pipeloom("analyze", *line.split())
    assert found.code == 2
    (fault,) = found.err.splitlines()
    assert WRONG[line] in fault
