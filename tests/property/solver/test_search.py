"""Local search: annealers, windows, restarts, unrolling and pairs find better, valid orders."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pipeloom.ir import (
    Costs,
    Objective,
    Placement,
    Problem,
    Profile,
    Report,
    Schedule,
    StageProfile,
    Status,
    dump_schedule,
    simulate,
    timed,
    verify_schedule,
)
from pipeloom.ir.cost.overlap import overlap_saves
from pipeloom.planner.explain.explanation import losses, why
from pipeloom.solver import (
    Budget,
    Incumbent,
    Method,
    Order,
    SolveOptions,
    build_family,
    lower_bound,
    lower_bounds,
    one_at_a_time,
    solve,
    within_memory,
    work_bound,
)
from pipeloom.solver.core.overlap_relaxation import least_times, overlap_work
from pipeloom.solver.portfolio import search_elsewhere, unrollers
from pipeloom.solver.remat.portfolio import one_at_a_time_with_remat
from pipeloom.solver.search.kernels.overlap import time_overlap
from pipeloom.solver.search.local_search import Annealer, FillingAnnealer
from pipeloom.solver.search.overlap_annealing import join_pairs, split_pairs
from pipeloom.solver.search.restarts import Restarts
from pipeloom.solver.search.splicing import Splices, lengthened
from pipeloom.solver.search.window_search import WindowSearch
from tests.support.large_problems import large_problem
from tests.support.unequal import unequal

# orders of F's and B's whose W's fill the time between them ---------------------------------------


STAGE = StageProfile(1.0, 1.0, 1.0, 1.0, 0.5)


LINEAR = Problem.linear(Profile((STAGE,) * 3, 3, 0.1), 6, 3.0)
V = Problem(Profile((STAGE,) * 6, 3, 0.1), 6, Placement.v(3), (3.0,) * 3)


@pytest.mark.parametrize("objective", Objective)
@pytest.mark.parametrize(
    ("annealer", "problem", "share"), [(Annealer, LINEAR, 0.7), (FillingAnnealer, V, 0.8)]
)
def test_annealing_finds_what_memory_allows(
    annealer: Any, problem: Problem, share: float, objective: Objective
) -> None:
    """The orders keep the memory, here half of what a V needs, and cost what is said."""
    problem = replace(problem, objective=objective)
    best = Incumbent(problem, lower_bound(problem), SolveOptions(time_limit=60))
    best.offer(one_at_a_time(problem), "one-at-a-time")
    worst, search = best.cost, annealer(problem, np.random.default_rng(0))
    for _ in range(3):
        search.round(best)
    assert best.bound.value <= best.cost * (1 + 1e-9)
    assert best.cost < share * worst
    schedule = best.schedule("heuristic", 0)
    assert schedule.known_timing.cost(objective) == pytest.approx(best.cost)
    assert max(schedule.known_timing.peak_memory) <= 3.0


# a search that begins anew goes on by itself, and offers what costs less than the best ------------


STAGE_RESTARTS = StageProfile(6.0, 6.5, 4.5, m_b=1.05, m_w=0.6)
PROBLEM = Problem(Profile((STAGE_RESTARTS,) * 6, 3, t_comm=0.4), 7, Placement.v(3), (7.0,) * 3)


def begun(work: float = 600) -> Incumbent:
    best = Incumbent(PROBLEM, work_bound(PROBLEM), SolveOptions(work_limit=work))
    best.offer(one_at_a_time(PROBLEM), "one-at-a-time")
    return best


def test_it_finds_nearly_the_work_and_what_it_offers_is_valid() -> None:
    best = begun()
    restarts = Restarts(best, np.random.default_rng(3))
    before = best.cost
    went_on = [restarts.round(best) for _ in range(4)]
    assert went_on[0]
    assert best.cost < 0.5 * before
    assert best.cost < 1.1 * best.bound.value
    assert verify_schedule(dump_schedule(best.schedule("auto", 3))) == []


def test_a_better_schedule_of_others_stays_while_it_goes_on() -> None:
    found = begun()
    Restarts(found, np.random.default_rng(3)).round(found)
    best = begun()
    best.offer(found.found()[0], "elsewhere", 0.1)
    assert Restarts(best, np.random.default_rng(4)).round(best)
    assert best.method == "elsewhere"


def test_it_does_not_begin_where_little_work_is_left() -> None:
    assert not Restarts(begun(50), np.random.default_rng(3)).able
    assert Restarts(begun(), np.random.default_rng(3)).able


# windows of the best order, put in order anew by CP-SAT -------------------------------------------


def _problems() -> dict[str, Problem]:
    copies, makespan = large_problem("two copies", 0), large_problem("makespan", 0)
    remat = large_problem("remat", 1)
    stages = remat.profile.stages
    fused = [replace(s, t_r=None, m_r=None, t_bw=0.9 * (s.t_b + s.t_w)) for s in stages]
    halves = [replace(s, t_r=0.4 * s.t_f, m_r=0.5 * s.m_b) for s in stages[:2]]
    two = Placement.of_stages((0, 1, 1, 0, 0, 1, 1, 0))
    period = replace(makespan, placement=two, memory_limit=(6.0,) * 4, objective=Objective.PERIOD)
    return {
        "two copies": copies,
        "makespan": makespan,
        "ranks without stages": period,
        "BW": replace(remat, profile=replace(remat.profile, stages=tuple(fused))),
        "halves": replace(remat, profile=replace(remat.profile, stages=(*halves, *stages[2:]))),
    }


@pytest.mark.parametrize("name", list(_problems()))
def test_windows_make_schedules_better_and_prove_nothing(name: str) -> None:
    problem = _problems()[name]
    best = Incumbent(problem, lower_bound(problem), SolveOptions(work_limit=100_000))
    best.offer(one_at_a_time(problem), "one-at-a-time")
    worst, bound = best.cost, best.bound
    search = WindowSearch(best, np.random.default_rng(0))
    for _ in range(12):
        search.round(best)
        if best.cost < worst:
            break
    assert best.cost < worst
    assert best.bound is bound
    schedule = best.schedule("auto", 0)
    limit = np.array(problem.memory_limit) * (1 + 1e-9)
    assert (np.array(schedule.known_timing.peak_memory) <= limit).all()


def test_schedules_that_offload_stay_as_they_are() -> None:
    problem = large_problem("offload", 1)
    order = one_at_a_time_with_remat(problem, every=False)
    cost = simulate(Schedule(problem, order)).cost(problem.objective)
    best = Incumbent(problem, lower_bound(problem), SolveOptions(work_limit=100_000))
    best.offer(order, "one-at-a-time", cost)
    WindowSearch(best, np.random.default_rng(0)).round(best)
    assert best.cost == cost


# schedules of many microbatches from the steady state of few --------------------------------------


FAR = 48  # microbatches more


@pytest.mark.parametrize("seed", range(15))
def test_longer_orders_are_valid(seed: int) -> None:
    given = unequal(seed, most_ranks=5)
    small, problem = (replace(given, microbatches=m) for m in (20, 20 + FAR))
    order = solve(small, work_limit=10).order
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
    order = solve(problem, work_limit=1, seed=seed).order
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


# the optimizer's pairs: an F and a BW that run at once where the profile says what that saves -----


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
    found = solve(problem, solver=solver, work_limit=4)
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
    assert not any(solve(problem, work_limit=1).pairs)


def test_an_exact_solver_makes_no_pairs_and_proves_nothing_of_those_with() -> None:
    problem = Problem.linear(Profile((CHUNK, CHUNK), 2, 0.0), 3)
    best = solve(problem, solver="heuristic", work_limit=2)
    exact = solve(problem, solver="cp-sat", time_limit=20)
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
    found = solve(replace(built.problem, memory_limit=(5.0,) * 4), work_limit=2)
    assert any(found.pairs)
    assert found.known_report.known_bound <= found.known_timing.period <= built.known_timing.period
    assert verify_schedule(dump_schedule(found)) == []
