"""Schedules of many microbatches from the steady state of few."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.frontier.unequal import KINDS, unequal
from pipeloom.ir.cost.simulator import Simulator, simulate, timed
from pipeloom.ir.formats import dump_schedule
from pipeloom.ir.model.ops import (
    format_order,
    offsets_of,
    pack,
    parse_order,
    split_backwards,
    unpack,
)
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Report, Schedule
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.solver.bounds import lower_bound
from pipeloom.solver.construct.one_at_a_time import one_at_a_time
from pipeloom.solver.core.incumbent import Incumbent
from pipeloom.solver.core.options import SolveOptions
from pipeloom.solver.families import build_family
from pipeloom.solver.optimize import optimize
from pipeloom.solver.portfolio import search_elsewhere, unrollers
from pipeloom.solver.search.unrolling import STEP, fewer_microbatches, unrolled


def test_the_steady_state_is_repeated() -> None:
    row = pack(parse_order("0F0 0F1 0B0 0W0 0F2 0B1 0W1 0B2 0W2"))
    (first, *_) = unrolled((row,), 3, 3 + STEP)
    steady = " ".join(f"0F{j + 1} 0B{j} 0W{j}" for j in range(2 + STEP))
    assert format_order(unpack(first[0])) == f"0F0 {steady} 0B50 0W50"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_unrolled_orders_are_valid(kind: str, seed: int) -> None:
    given = unequal(kind, seed, most=(5, 24))
    small = replace(given, microbatches=20)
    problem = replace(given, microbatches=20 + STEP)
    order = optimize(small, work_limit=10).order
    simulator = Simulator(problem, offsets_of([np.zeros(3 * (20 + STEP))] * problem.ranks))
    found = 0
    for rows in unrolled(order, 20, 20 + STEP):
        if not np.isfinite(simulator.cost(np.concatenate(rows))):
            continue  # the cuts do not go together
        schedule = Schedule(problem, rows, report=Report(problem.objective, "unrolled"))
        peaks = zip(simulate(schedule).peak_memory, problem.memory_limit, strict=True)
        assert all(peak <= limit * (1 + 1e-9) for peak, limit in peaks)
        if found == 0:
            assert verify_schedule(json.loads(json.dumps(dump_schedule(timed(schedule))))) == []
        found += 1
    assert found > 0


@pytest.mark.parametrize("family", ["zb-v", "interleaved-1f1b"])
def test_orders_of_several_stages_a_rank_unroll(family: str) -> None:
    """Six unequal stages on three ranks: no worse than what the family builds for all
    microbatches."""
    rng = np.random.default_rng(1)
    times = rng.uniform(0.9, 1.1, (6, 3)).tolist()
    profile = Profile(tuple(StageProfile(*each, 1.0, 0.5) for each in times), 3, 0.1)
    small, whole = (build_family(family, profile, m) for m in (24, 24 + STEP))
    found = []
    for rows in unrolled(tuple(map(split_backwards, small.order)), 24, 24 + STEP):
        cost = Simulator(whole.problem, offsets_of(rows)).cost(np.concatenate(rows))
        if np.isfinite(cost):
            found.append((cost, rows))
    best = timed(Schedule(whole.problem, min(found, key=lambda each: each[0])[1]))
    assert verify_schedule(json.loads(json.dumps(dump_schedule(best)))) == []
    assert best.known_timing.period <= whole.known_timing.period * (1 + 1e-9)


def test_kinds_out_of_the_order_of_microbatches_are_left_alone() -> None:
    row = pack(parse_order("0F1 0F0 0B1 0W1 0B0 0W0"))
    assert list(unrolled((row,), 2, 2 + STEP)) == []


def test_where_few_more_are_asked_for_nothing_is_unrolled() -> None:
    stage = StageProfile(1.0, 1.0, 1.0, 1.0, 0.5)
    problem = Problem.linear(Profile((stage,) * 4, 4, 0.1), 12, 2.0)
    assert fewer_microbatches(problem) == []
    assert fewer_microbatches(replace(problem, microbatches=100)) == [52]
    assert fewer_microbatches(replace(problem, microbatches=200)) == [8, 56]


def test_the_steady_state_of_fewer_microbatches_makes_a_good_schedule() -> None:
    """The first unrolled schedules alone are far better than where they start from."""
    stages = tuple(StageProfile(9.3 + 0.7 * s, 11.1 - 0.3 * s, 8.2, 1.0, 0.5) for s in range(6))
    problem = Problem.linear(Profile(stages, 6, 0.5), 204, 4.0)
    best = Incumbent(problem, lower_bound(problem), SolveOptions(time_limit=60))
    best.offer(one_at_a_time(problem), "one-at-a-time")
    pieces = search_elsewhere(best, (0, 1))
    next(pieces)
    assert best.source == "unrolled"
    assert best.cost < 1.2 * best.bound.value
    assert best.order is not None
    assert np.isfinite(best.cost)


def test_time_that_is_up_before_fewer_have_a_schedule_is_no_error() -> None:
    stage = StageProfile(1.0, 1.0, 1.0, 1.0, 0.5)
    problem = Problem(Profile((stage,) * 8, 4, 0.1), 204, Placement.interleaved(4, 2), (6.0,) * 4)
    best = Incumbent(problem, lower_bound(problem), SolveOptions(time_limit=60))
    best.offer(one_at_a_time(problem), "one-at-a-time")
    best.interrupt.put()
    cost = best.cost
    for each in unrollers(best, np.random.default_rng(0)):
        each.round(best)
    assert best.cost == cost


def test_fewer_microbatches_begin_where_memory_holds_one_at_a_time() -> None:
    """No family fits, so that nothing is known of a V's cost when its interval is looked for."""
    stages = tuple(StageProfile(1.0, 1.3, 1.0, m_b, 0.5 * m_b) for m_b in (5.0, *(1.0,) * 5))
    problem = Problem(Profile(stages, 3, 0.1), 231, Placement.v(3), (6.0, 2.0, 2.0))
    best = Incumbent(problem, lower_bound(problem), SolveOptions(time_limit=60))
    best.offer(one_at_a_time(problem), "one-at-a-time")
    for each in unrollers(best, np.random.default_rng(0)):
        each.round(best)
    assert best.source == "unrolled"
