"""``--spread``, ``--slow`` and ``--robust``: of schedules and schemes, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeloom.ir.cost.spread import LogNormal, sample_steps
from pipeloom.ir.errors import InputError
from pipeloom.ir.formats import dump_profile
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.planner.measured.ratios import MeasuredRatios
from pipeloom.planner.optimize import optimize
from pipeloom.planner.robustness.robust import check_robust
from pipeloom.planner.robustness.variation import Variation
from tests.support.command_line import Command

PROFILE = Profile((StageProfile(2.0, 3.0, 1.5, spread=0.1),) * 4, 4, t_comm=0.1)


HURRY = {"work_limit": 60, "robust": "mean", "spread": 0.1}


def test_a_robust_schedule_is_shorter_in_the_mean_and_valid() -> None:
    profile = replace(PROFILE, memory_limit=(4.0,) * 4)
    found = optimize(profile, 12, **HURRY)
    facts = found.to_dict()["robust"]
    assert verify_schedule(found.document) == []
    assert facts["gain"] > 0.005
    noise = LogNormal((0.1,) * 4)
    plain = optimize(profile, 12, work_limit=60)
    ours, theirs = (
        sample_steps(each.schedule, noise, samples=2000, seed=99).mean for each in (found, plain)
    )
    assert ours < theirs
    assert found.cost >= plain.cost * (1 - 1e-9)
    assert facts["lower_bound"] == pytest.approx(12 * 6.5)  # a rank's work
    assert "Jensen" not in str(found)


def test_the_same_seed_gives_the_same_robust_schedule() -> None:
    first, again = (optimize(PROFILE, 6, **HURRY, objective="makespan") for _ in range(2))
    assert first.document["order"] == again.document["order"]
    assert first.facts == again.facts
    assert first.facts["robust"]["lower_bound"] == first.lower_bound
    assert "convex in op times (Jensen)" in str(first)


def test_a_quantile_has_no_bound_and_the_profile_s_spread_is_taken() -> None:
    found = optimize(PROFILE, 6, work_limit=20, robust="p95")
    facts = found.facts["robust"]
    assert facts["lower_bound"] is None
    assert facts["robust"]["p95"] <= facts["plain"]["p95"]
    assert "as the profile says" in str(found)


def test_several_stages_a_rank_and_unlike_microbatches_may_be_robust() -> None:
    found = optimize(PROFILE, 4, placement="interleaved:2", **HURRY)
    assert verify_schedule(found.document) == []
    document = dump_profile(PROFILE)
    document["stages"][0]["t_f"] = [1.0, 2.0, 3.0, 2.0]
    unlike = optimize(document, **HURRY)
    assert verify_schedule(unlike.document) == []


def test_a_slow_rank_is_planned_as_its_stages_with_longer_times() -> None:
    slow = optimize(PROFILE, 6, work_limit=5, slow={1: 1.5}, objective="makespan")
    stages = list(PROFILE.stages)
    stages[1] = replace(stages[1], t_f=3.0, t_b=4.5, t_w=2.25)
    other = optimize(replace(PROFILE, stages=tuple(stages)), 6, work_limit=5, objective="makespan")
    assert slow.schedule.problem.profile.stages == tuple(stages)
    assert slow.document["order"] == other.document["order"]


def test_slow_ranks_may_be_told_one_by_one(pipeloom: Command, tmp_path: Path) -> None:
    (tmp_path / "P").write_text(json.dumps(dump_profile(PROFILE)))
    asked = ["optimize", tmp_path / "P", "-m", 4, "-q", "--work-limit", 0.01]
    once = pipeloom(*asked, "--slow", "1:1.5,3:2").json["profile"]
    assert pipeloom(*asked, "--slow", "3:2", "--slow", "1:1.5").json["profile"] == once
    assert once["stages"][3]["t_f"] == 4.0


REFUSED = {
    "P --robust": "--robust: expected spread in P, or --spread X beside it",
    "P --spread 0.1": "--spread: expected it with --robust alone",
    "P --robust --spread -0.1": "--spread: expected a number from 0 to 1",
    "P --robust --spread 2": "--spread: expected a number from 0 to 1",
    "P --robust --spread x": "argument --spread: expected a finite number",
    "P --robust p50": "argument --robust: invalid choice",
    "P --robust --spread 0.1 --placement auto": "--robust: expected one placement, got --placement",
    "P --robust --spread 0.1 --passing auto": "--robust: expected one placement, got --passing",
    "P --robust --spread 0.1 --for megatron": "--robust: expected one placement, got --for",
    "R --robust --spread 0.1": "--robust: expected --recompute none and --offload none",
    "P --slow 4:2": "--slow: expected ranks 0..3, got 4",
    "P --slow 1:-2": "argument --slow: expected RANK:X, each rank once and X > 0",
    "P --slow 1:2 --passing weights": "--slow: expected one placement, got --passing weights",
    "P --slow 1:2 --placement bidirectional": (
        "--slow: expected each stage on one rank, got --placement bidirectional"
    ),
}


@pytest.mark.parametrize("line", REFUSED)
def test_what_robust_is_not_for_is_one_line(
    pipeloom: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    stage = StageProfile(2.0, 3.0, 1.5)
    Path("P").write_text(json.dumps(dump_profile(Profile((stage,) * 4, 4))))
    again = replace(stage, t_r=2.0, m_r=0.1)
    Path("R").write_text(json.dumps(dump_profile(Profile((again,) * 4, 4))))
    found = pipeloom("optimize", *line.split(), "-m", "4", "-q", "--work-limit", "1", "-o", "x")
    assert found.code == 2
    (fault,) = found.err.splitlines()
    assert REFUSED[line] in fault


def test_no_mean_of_measured_times_is_bounded_by_the_profile_s() -> None:
    """Times of a trace may be shorter than the profile's, and so may the mean of their steps."""
    measured = MeasuredRatios(np.ones((1, 4, 4, 4)), (False,) * 4)
    with pytest.raises(InputError, match="spread: expected a number from 0 to 1, got 'trace'"):
        check_robust(Problem.linear(PROFILE, 4), Variation(measured=measured, where="trace"), "P")
