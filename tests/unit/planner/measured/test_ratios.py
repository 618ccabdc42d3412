"""Op times of a trace as samples: they cover what was measured; what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeloom.ir.cost.spread import sample_steps
from pipeloom.ir.errors import InputError
from pipeloom.ir.model.problem import Problem
from pipeloom.planner.build import build
from pipeloom.planner.measured.profile import profile_from
from pipeloom.planner.measured.ratios import measured_ratios

PRIMUS = Path(__file__).with_name("primus_pp8.json")


def test_a_trace_spreads_its_profile() -> None:
    """Middle halves, so that the one F that took five times its median does not count."""
    profile = profile_from(PRIMUS, warmup=0).profile
    spreads = [stage.spread for stage in profile.stages]
    assert all(spread is not None and 0.001 < spread < 0.03 for spread in spreads)


def test_predicted_steps_cover_the_measured_ones() -> None:
    profile = profile_from(PRIMUS, warmup=0).profile
    ratios = measured_ratios(PRIMUS, warmup=0)
    schedule = build("1f1b", profile, 16, memory_limit=float("inf"))
    found = sample_steps(schedule, ratios)
    steps = json.loads(PRIMUS.read_text())["iterations"].values()
    for ranks in steps:
        took = ranks[0]["bwd_end"][-1] - ranks[0]["fwd_start"][0]
        assert 0.025 < found.rank_of(took) < 0.975
        assert found.mean == pytest.approx(took, rel=0.01)


def test_of_one_step_ops_take_each_other_s_times() -> None:
    ratios = measured_ratios(PRIMUS)
    profile = profile_from(PRIMUS).profile
    drawn = ratios.draw(Problem.linear(profile, 40), 100, np.random.default_rng(0))
    assert drawn.shape == (4, 8, 40, 100)
    assert (drawn[3] == 1.0).all()  # no R's were run
    own = drawn[0, 2] * profile.stages[2].t_f
    assert np.isin(own.round(6), ratios.times[0, 0, 2].round(6)).all()
    assert (drawn[1] == drawn[2]).mean() < 0.5  # B and W are drawn each by itself


@pytest.mark.parametrize("broken", ["fewer", "stages"])
def test_wrong_traces_are_one_line(tmp_path: Path, broken: str) -> None:
    document: dict[str, Any] = json.loads(PRIMUS.read_text())
    if broken == "fewer":
        row = document["iterations"]["5"][0]
        row["fwd_start"], row["fwd_end"] = row["fwd_start"][1:], row["fwd_end"][1:]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document))
    problem = Problem.linear(profile_from(PRIMUS).profile.split(2), 4)
    with pytest.raises(InputError, match="spread: expected"):
        measured_ratios(path, warmup=0).draw(problem, 1, np.random.default_rng(0))
