"""Makespans under op times that vary: the simulator's without spread, draws, a measured one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.cost.spread import ExpectedMakespan, sampled_makespans
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule
from pipeloom.solver.families import build_family

STAGES = tuple(StageProfile(2.0 + s % 3, 3.0, 1.5 + s % 2, activation_bytes=1e6) for s in range(4))
PROFILE = Profile(STAGES, 4, t_comm=0.25)
INFINITE = float("inf")


def built(family: str, microbatches: int = 8) -> Schedule:
    return build_family(family, PROFILE, microbatches, memory_limit=INFINITE)


@pytest.mark.parametrize(
    "family", ["1f1b", "zb-h1", "interleaved-1f1b:2", "zb-v", "chimera", "weipipe-interleave"]
)
def test_without_spread_each_sample_takes_what_the_simulator_says(family: str) -> None:
    schedule = built(family)
    found = sampled_makespans(schedule, [0.0] * schedule.problem.stages, samples=3)
    assert found == pytest.approx([simulate(schedule).makespan] * 3)


def test_op_times_have_the_profile_s_as_mean_and_the_spread_and_follow_the_seed() -> None:
    """One rank's makespan is the sum of its op times."""
    schedule = build_family("1f1b", replace(PROFILE, stages=STAGES[:1], ranks=1), 4, memory_limit=9)
    (times,) = simulate(schedule).took
    found = sampled_makespans(schedule, [0.2], samples=20_000)
    assert found.mean() == pytest.approx(times.sum(), rel=0.002)
    assert found.std() == pytest.approx(0.2 * np.sqrt(np.square(times).sum()), rel=0.02)
    first, again, other = (
        sampled_makespans(schedule, [0.2], samples=9, seed=seed) for seed in (1, 1, 2)
    )
    assert (first == again).all()
    assert (first != other).all()


def test_batches_of_samples_do_not_change_what_is_drawn_of(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule, whole = built("1f1b"), [0.0, 0.1, 0.0, 0.0]
    expected = sampled_makespans(schedule, whole, samples=2000).mean()
    monkeypatch.setattr("pipeloom.ir.cost.spread.BATCH", 1)
    found = sampled_makespans(schedule, whole, samples=2000)
    assert found.shape == (2000,)
    assert found.mean() == pytest.approx(expected, rel=0.002)


def test_a_makespan_under_spread_is_in_the_mean_no_less_than_without() -> None:
    """Jensen: it is a maximum of sums."""
    schedule = built("zb-h1")
    found = sampled_makespans(schedule, [0.2] * 4, samples=1000)
    assert found.mean() > simulate(schedule).makespan


def test_a_measured_makespan_has_its_place_among_those_expected() -> None:
    schedule = built("1f1b")
    assert ExpectedMakespan.of(schedule, 1.0) is None
    stages = tuple(replace(stage, spread=0.1) for stage in STAGES)
    problem = replace(schedule.problem, profile=replace(PROFILE, stages=stages))
    spread = replace(schedule, problem=problem)
    found = ExpectedMakespan.of(spread, 0.0)
    assert found is not None
    assert simulate(schedule).makespan < found.mean < found.p95
    shares = [ExpectedMakespan.of(spread, by) for by in (found.p95, 2 * found.p95)]
    assert [one.share_below for one in shares if one] == pytest.approx([0.95, 1.0], abs=0.01)
    assert "measured is longer than 0% of steps" in str(found)
