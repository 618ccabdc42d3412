"""V schedules that repeat: valid at all sizes, within limits between V-Min's and V-Half's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipeloom.ir.cost.simulator import timed
from pipeloom.ir.formats import dump_schedule
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.solver.bounds import lower_bound
from pipeloom.solver.construct.one_at_a_time import one_at_a_time
from pipeloom.solver.construct.periodic_v import PeriodicV, periodic_order
from pipeloom.solver.core.incumbent import Incumbent
from pipeloom.solver.core.methods import Method
from pipeloom.solver.core.options import SolveOptions
from pipeloom.solver.core.progress import FALLBACK
from pipeloom.solver.families import build_family
from pipeloom.solver.search.periodic_search import search_periodic


def unequal(ranks: int, seed: int, limit: float = np.inf) -> Problem:
    """Unequal times, delays and sizes; on odd seeds B and W are one op."""
    rng = np.random.default_rng(seed)
    stages = tuple(
        StageProfile(*times, float(rng.uniform(0.8, 1.2)), float(rng.uniform(0.0, 0.8)))
        for times in rng.uniform(0.5, 1.5, (2 * ranks, 3)).tolist()
    )
    if seed % 2:
        stages = tuple(replace(s, t_b=s.t_b + s.t_w, t_w=0.0, m_w=0.0) for s in stages)
    profile = Profile(stages, ranks, float(rng.uniform(0.0, 0.5)))
    return Problem(profile, 8 * ranks, Placement.v(ranks), (limit,) * ranks)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", range(4))
def test_an_order_keeps_its_interval_and_holds_what_is_said(ranks: int, seed: int) -> None:
    problem, rng = unequal(ranks, seed), np.random.default_rng(seed)
    v = PeriodicV.of(problem)
    interval = v.work * float(rng.choice((1.0, 1.05, 1.3)))
    starts, _ = v.starts(interval, rng.uniform(0.1, 1.0, ranks))
    rows = periodic_order(starts, interval, problem.microbatches)
    found = timed(Schedule(problem, rows))
    assert verify_schedule(dump_schedule(found)) == []
    once = float((starts + v.lengths).max())
    assert found.known_timing.makespan <= once + (problem.microbatches - 1) * interval + 1e-4
    assert np.all(found.known_timing.peak_memory <= v.peaks(starts, interval) + 1e-9)
    assert np.all(v.held(starts) <= interval * v.peaks(starts, interval) + 1e-4)


@pytest.mark.parametrize("seed", range(6))
def test_of_ops_without_length_no_more_is_held_than_is_said(seed: int) -> None:
    """W's take no time and hold memory until they run: rounding may not say when that is."""
    problem = unequal(3, 2 * seed)
    stages = tuple(replace(stage, t_w=0.0) for stage in problem.profile.stages)
    problem = replace(problem, profile=replace(problem.profile, stages=stages))
    v = PeriodicV.of(problem)
    starts, _ = v.starts(1.3 * v.work, np.ones(3))
    found = timed(Schedule(problem, periodic_order(starts, 1.3 * v.work, problem.microbatches)))
    assert np.all(found.known_timing.peak_memory <= v.peaks(starts, 1.3 * v.work) + 1e-9)


def searched(problem: Problem, cost: float, enough: float = 0.0) -> Incumbent:
    """The search below a schedule of ``cost``, until one costs no more than ``enough``."""
    best = Incumbent(problem, lower_bound(problem), SolveOptions(time_limit=60))
    best.offer(one_at_a_time(problem), FALLBACK, cost)
    for _ in search_periodic(best):
        if best.cost <= enough:
            break
    return best


@pytest.mark.parametrize(("ranks", "limit", "seed"), [(1, 2.5, 0), (3, 5.0, 1), (3, 5.0, 2)])
def test_limits_are_kept_and_what_is_found_is_valid(ranks: int, limit: float, seed: int) -> None:
    problem = unequal(ranks, seed, limit)
    best = searched(problem, 1e9, 1.5 * problem.microbatches * PeriodicV.of(problem).work)
    assert best.method == Method.PERIODIC
    assert best.order is not None
    assert verify_schedule(dump_schedule(timed(Schedule(problem, best.order)))) == []


def light_ends(microbatches: int, limit: float) -> Problem:
    """Six ranks; the first and last have a layer less on the way down. W's hold all of M_B."""
    whole, light = (StageProfile(n * 5.7, n * 6.4, n * 5.0, n, n) for n in (4.0, 3.0))
    stages = (light, *(whole,) * 4, light, *(whole,) * 6)
    return Problem(Profile(stages, 6, 0.4), microbatches, Placement.v(6), (limit,) * 6)


def test_below_v_half_the_published_v_is_beaten() -> None:
    """Of the 8 chunks that V-Half holds 7 fit; V-Min loses some in every period."""
    problem = light_ends(72, 28.4)
    published = build_family("v-min", problem.profile, 72, memory_limit=28.4)
    enough = 0.94 * published.known_timing.period
    assert searched(problem, published.known_timing.period, enough).cost <= enough


@pytest.mark.parametrize("problem", [light_ends(47, 28.4), light_ends(72, np.inf)])
def test_few_microbatches_and_endless_memory_are_left_to_others(problem: Problem) -> None:
    assert searched(problem, 1e9).method == FALLBACK
