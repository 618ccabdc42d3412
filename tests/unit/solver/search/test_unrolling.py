"""Schedules of many microbatches from the steady state of few."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from pipeloom.ir.cost.simulator import simulate, timed
from pipeloom.ir.formats import dump_schedule
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Report, Schedule
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.solver.bounds import lower_bound
from pipeloom.solver.construct.one_at_a_time import one_at_a_time
from pipeloom.solver.core.incumbent import Incumbent
from pipeloom.solver.core.methods import Method
from pipeloom.solver.core.options import Order, SolveOptions
from pipeloom.solver.core.schedule_cost import within_memory
from pipeloom.solver.core.stopping import Budget
from pipeloom.solver.families import build_family
from pipeloom.solver.optimize import optimize
from pipeloom.solver.portfolio import search_elsewhere, unrollers
from pipeloom.solver.search.splicing import Splices, lengthened
from tests.support.unequal import unequal

FAR = 48  # microbatches more


@pytest.mark.parametrize("seed", range(15))
def test_longer_orders_are_valid(seed: int) -> None:
    given = unequal(seed, most_ranks=5)
    small, problem = (replace(given, microbatches=m) for m in (20, 20 + FAR))
    order = optimize(small, work_limit=10).order
    found = lengthened(problem, order, 20, np.random.default_rng(0), Budget())
    assert found is not None
    _check(problem, found)


def _check(problem: Problem, order: Order) -> float:
    schedule = timed(Schedule(problem, order, report=Report(problem.objective, "unrolled")))
    assert within_memory(problem, schedule.known_timing)
    assert verify_schedule(json.loads(json.dumps(dump_schedule(schedule)))) == []
    return schedule.known_timing.cost(problem.objective)


PLACEMENTS = {
    "v": (Placement.v(3), 6),
    "wave": (Placement.wave(3, 2), 12),
    "interleaved": (Placement.interleaved(3, 2), 6),
    "two copies": (Placement.bidirectional(4), 4),
}


@pytest.mark.parametrize("kind", PLACEMENTS)
@pytest.mark.parametrize("seed", range(3))
def test_whatever_the_piece_its_orders_can_run(kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    placement, stages = PLACEMENTS[kind]
    ranks = 1 + max(max(each) for each in placement.table)
    times = rng.choice([0.0, 1.0, 1.3, 2.0], (stages, 3)).tolist()
    profile = Profile(tuple(StageProfile(*each, 1.0, 0.5) for each in times), ranks, 0.2)
    problem = Problem(profile, 12, placement, (0.6 * stages,) * ranks)
    order = optimize(problem, work_limit=1, seed=seed).order
    splices = Splices(problem, order, rng)
    for period in splices.periods(6):
        for copies in (-1, 1, 2):
            other = replace(problem, microbatches=12 + copies * period)
            for cut in splices.cuts:
                if int(cut.max()) + period // splices.streams <= 12 // splices.streams:
                    rows = splices.spliced(cut, period, copies)
                    simulate(Schedule(other, rows))  # raises where an op can never start
                    ops = sorted(np.concatenate(rows).tolist())
                    assert ops == sorted(np.concatenate(one_at_a_time(other)).tolist())


@pytest.mark.parametrize("family", ["zb-v", "interleaved-1f1b"])
def test_orders_of_several_stages_a_rank_lengthen(family: str) -> None:
    """Six unequal stages on three ranks: no worse than what the family builds for all
    microbatches."""
    rng = np.random.default_rng(1)
    times = rng.uniform(0.9, 1.1, (6, 3)).tolist()
    profile = Profile(tuple(StageProfile(*each, 1.0, 0.5) for each in times), 3, 0.1)
    small, whole = (build_family(family, profile, m) for m in (24, 24 + FAR))
    found = lengthened(whole.problem, small.order, 24, np.random.default_rng(0), Budget())
    assert found is not None
    assert _check(whole.problem, found) <= whole.known_timing.period * (1 + 1e-9)


def test_the_steady_state_of_fewer_microbatches_makes_a_good_schedule() -> None:
    """The first unrolled schedules alone are far better than where they start from."""
    stages = tuple(StageProfile(9.3 + 0.7 * s, 11.1 - 0.3 * s, 8.2, 1.0, 0.5) for s in range(6))
    problem = Problem.linear(Profile(stages, 6, 0.5), 204, 4.0)
    best = Incumbent(problem, lower_bound(problem), SolveOptions(time_limit=60))
    best.offer(one_at_a_time(problem), "one-at-a-time")
    pieces = search_elsewhere(best, (0, 1))
    next(pieces)
    assert best.method == Method.UNROLL
    assert best.cost < 1.2 * best.bound.value


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
    assert best.method == Method.UNROLL
