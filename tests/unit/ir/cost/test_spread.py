"""Steps under op times that vary: the same costs as the simulator's, draws, what is felt."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.cost.spread import ExpectedMakespan, LogNormal, sample_steps
from pipeloom.ir.model.ops import FloatArray
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule
from pipeloom.solver.families import build_family

STAGES = tuple(StageProfile(2.0 + s % 3, 3.0, 1.5 + s % 2, activation_bytes=1e6) for s in range(4))
PROFILE = Profile(STAGES, 4, t_comm=0.25)
INFINITE = float("inf")


def built(family: str, microbatches: int = 8) -> Schedule:
    return build_family(family, PROFILE, microbatches, memory_limit=INFINITE)


@pytest.mark.parametrize("objective", list(Objective))
@pytest.mark.parametrize(
    "family", ["1f1b", "zb-h1", "interleaved-1f1b:2", "zb-v", "chimera", "weipipe-interleave"]
)
def test_without_spread_each_sample_costs_what_the_simulator_says(
    family: str, objective: Objective
) -> None:
    schedule = built(family)
    none = LogNormal((0.0,) * schedule.problem.stages)
    found = sample_steps(schedule, none, samples=3, objective=objective)
    assert found.costs == pytest.approx([simulate(schedule).cost(objective)] * 3)


class Slower:
    """Some ops of one kind and stage take twice as long."""

    def draw(self, problem: Problem, samples: int, rng: np.random.Generator) -> FloatArray:
        ratios = np.ones((4, problem.stages, problem.microbatches, samples))
        ratios[0, 1] = 2.0
        return ratios


def test_sampled_times_are_those_of_a_profile_with_them() -> None:
    schedule = built("zb-h1")
    stages = (*STAGES[:1], replace(STAGES[1], t_f=2 * STAGES[1].t_f), *STAGES[2:])
    other = replace(schedule.problem, profile=replace(PROFILE, stages=stages))
    expected = simulate(replace(schedule, problem=other, timing=None)).period
    assert sample_steps(schedule, Slower(), samples=2).costs == pytest.approx([expected] * 2)


def test_a_slow_rank_is_a_profile_with_its_stage_slower() -> None:
    schedule, by = built("1f1b"), np.array([1.0, 1.0, 1.3, 1.0])
    slow = replace(STAGES[2], t_f=1.3 * STAGES[2].t_f, t_b=3.9, t_w=1.3 * STAGES[2].t_w)
    other = replace(PROFILE, stages=(*STAGES[:2], slow, STAGES[3]))
    expected = simulate(
        replace(schedule, problem=replace(schedule.problem, profile=other), timing=None)
    ).period
    none = LogNormal((0.0,) * 4)
    assert sample_steps(schedule, none, samples=1, slow=by).costs == pytest.approx([expected])


def test_draws_have_mean_one_and_the_spread_and_follow_the_seed() -> None:
    problem = Problem.linear(PROFILE, 8)
    drawn = LogNormal((0.1, 0.2, 0.0, 0.5)).draw(problem, 20_000, np.random.default_rng(0))
    assert drawn.mean(axis=(0, 2, 3)) == pytest.approx([1, 1, 1, 1], abs=0.01)
    assert drawn.std(axis=(0, 2, 3)) == pytest.approx([0.1, 0.2, 0.0, 0.5], rel=0.02)
    schedule, noise = built("zb-h1"), LogNormal((0.1,) * 4)
    first, again, other = (sample_steps(schedule, noise, samples=9, seed=s) for s in (1, 1, 2))
    assert (first.costs == again.costs).all()
    assert (first.costs != other.costs).all()


def test_a_makespan_under_spread_is_in_the_mean_no_less_than_without() -> None:
    """Jensen: it is a maximum of sums."""
    schedule = built("zb-h1")
    planned = simulate(schedule).makespan
    found = sample_steps(schedule, LogNormal((0.2,) * 4), objective=Objective.MAKESPAN)
    assert found.mean > planned
    assert found.quantile(0.05) < found.quantile(0.5) < found.quantile(0.95)
    assert found.rank_of(0.0) == 0.0
    assert found.rank_of(INFINITE) == 1.0


def test_what_is_felt_is_the_derivative_of_the_mean() -> None:
    schedule, noise = built("1f1b"), LogNormal((0.1,) * 4)
    found = sample_steps(schedule, noise, samples=2000)
    slow = np.ones(4)
    slow[1] += 1e-4
    later = sample_steps(schedule, noise, samples=2000, slow=slow)
    rank = np.repeat(np.arange(4), [len(row) for row in schedule.order])
    times = np.concatenate([np.subtract(e, s) for s, e in zip(*_timing(schedule), strict=True)])
    predicted = float((found.felt * times)[rank == 1].sum() * 1e-4)
    assert later.mean - found.mean == pytest.approx(predicted, rel=0.05)


def _timing(schedule: Schedule) -> tuple[tuple[FloatArray, ...], tuple[FloatArray, ...]]:
    timing = simulate(schedule)
    return timing.start, timing.end


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
