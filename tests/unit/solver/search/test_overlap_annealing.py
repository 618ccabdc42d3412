"""The optimizer's pairs: an F and a BW that run at once where the profile says what that saves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.cost.overlap import overlap_saves
from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.formats.schedule_json import dump_schedule
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule, Status
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.planner.explain.explanation import losses, why
from pipeloom.solver.bounds import lower_bounds
from pipeloom.solver.core.overlap_relaxation import least_times, overlap_work
from pipeloom.solver.families import build_family
from pipeloom.solver.optimize import optimize
from pipeloom.solver.search.kernels.overlap import time_overlap
from pipeloom.solver.search.overlap_annealing import join_pairs, split_pairs

CHUNK = StageProfile(1.0, 1.2, 0.8, 1.0, 0.5, t_fb=2.25)


def dualpipev(ranks: int = 2, microbatches: int = 8) -> Schedule:
    return build_family("dualpipev", Profile((CHUNK,) * 2 * ranks, ranks, 0.1), microbatches)


def test_an_order_with_pairs_comes_apart_and_together() -> None:
    schedule = dualpipev(3)
    order, at_once, offsets = split_pairs(schedule.order, schedule.pairs)
    assert len(order) == 3 * 6 * 8
    assert at_once.sum() == sum(map(len, schedule.pairs))
    again = split_pairs(*join_pairs(order, at_once, offsets))
    for one, other in zip((order, at_once, offsets), again, strict=True):
        assert one.tolist() == other.tolist()


@pytest.mark.parametrize("family", ["dualpipev", "zb-v"])
def test_the_kernel_times_pairs_as_the_simulator_does(family: str) -> None:
    schedule = build_family(family, dualpipev().problem.profile, 8)
    problem, costs = schedule.problem, Costs.of(schedule.problem)
    order, at_once, offsets = split_pairs(schedule.order, schedule.pairs)
    assert at_once.any() == (family == "dualpipev")
    times = np.full((4, 4), problem.profile.pair_time(0, 0))
    begins, ends = np.empty((2, problem.ranks))
    scratch = np.empty((2, problem.stages, problem.microbatches))
    into = costs.into_f, costs.into_b
    assert time_overlap(
        order, at_once, offsets, costs.durations, times, costs.owner, *into,
        begins, ends, *scratch,
    )  # fmt: skip
    rows, pairs = join_pairs(order, at_once, offsets)
    simulated = simulate(replace(schedule, order=rows, pairs=pairs))
    assert (ends - begins).tolist() == pytest.approx(simulated.spans)


@pytest.mark.parametrize("solver", ["auto", "heuristic"])
@pytest.mark.parametrize("limit", [5.0, 8.0])
def test_optimize_pairs_no_worse_than_dualpipev(solver: str, limit: float) -> None:
    built = dualpipev()
    problem = replace(built.problem, memory_limit=(limit,) * 2)
    found = optimize(problem, solver=solver, work_limit=4)
    assert any(found.pairs)
    assert found.known_report.known_bound <= found.known_timing.period <= built.known_timing.period
    assert solver != "auto" or found.known_timing.period < built.known_timing.period
    assert verify_schedule(dump_schedule(found)) == []
    assert max(found.known_timing.peak_memory) <= limit
    assert "with pairs" in why(found).words[-1]
    assert sum(loss.work for loss in losses(found)) == pytest.approx(found.known_timing.work)


def test_a_pair_that_costs_is_not_made() -> None:
    profile = Profile((replace(CHUNK, t_fb=3.5),) * 4, 2, 0.1)
    problem = Problem(profile, 4, Placement.wave(2, 1), (8.0,) * 2)
    assert not overlap_saves(problem)
    assert not any(optimize(problem, work_limit=1).pairs)


def test_an_exact_solver_makes_no_pairs_and_proves_nothing_of_those_with() -> None:
    problem = Problem.linear(Profile((CHUNK, CHUNK), 2, 0.0), 3)
    best = optimize(problem, solver="heuristic", work_limit=2)
    exact = optimize(problem, solver="cp-sat", time_limit=20)
    assert exact.known_report.status is Status.FEASIBLE
    assert exact.known_report.known_bound <= best.known_timing.period


def test_what_pairs_save_is_taken_off_w_then_b() -> None:
    problem = Problem.linear(Profile((CHUNK, replace(CHUNK, t_fb=2.0)), 2, 0.0), 5)
    times = [(s.t_f, s.t_b, s.t_w) for s in least_times(problem).profile.stages]
    assert times == [pytest.approx((1.0, 1.2, 0.05)), pytest.approx((1.0, 1.0, 0.0))]
    assert overlap_work(problem) == pytest.approx(3.0 + 4 * 2.25)
    assert next(lower_bounds(problem)).value == overlap_work(problem)


def test_two_copies_of_the_weights_run_in_pairs_no_worse_than_dualpipe() -> None:
    built = build_family("dualpipe", Profile((CHUNK,) * 4, 4, 0.1), 8)
    found = optimize(replace(built.problem, memory_limit=(5.0,) * 4), work_limit=2)
    assert any(found.pairs)
    assert found.known_report.known_bound <= found.known_timing.period <= built.known_timing.period
    assert verify_schedule(dump_schedule(found)) == []
