"""Constructors: what they build is valid, within memory, and costs what they say."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeloom.ir import (
    Objective,
    Placement,
    Problem,
    Profile,
    Report,
    Schedule,
    StageProfile,
    dump_schedule,
    parse_profile,
    simulate,
    timed,
    verify_schedule,
)
from pipeloom.ir.cost.simulator import Simulator
from pipeloom.solver import (
    FAMILIES,
    Incumbent,
    Method,
    Order,
    SolveOptions,
    build_family,
    lower_bound,
    one_at_a_time,
    solve,
)
from pipeloom.solver.construct.backward_tail import TailBuilder
from pipeloom.solver.construct.entry_orders import entry_orders
from pipeloom.solver.construct.linear import Constructor
from pipeloom.solver.construct.linear import settings as family
from pipeloom.solver.construct.list_parameters import Stages, list_parameters
from pipeloom.solver.construct.list_scheduler import list_schedule, tune_list
from pipeloom.solver.construct.periodic_v import PeriodicV, periodic_order
from pipeloom.solver.construct.priority_scheduler import (
    Scratch,
    priority_schedule,
    random_priorities,
)
from pipeloom.solver.construct.round_based import RoundParameters
from pipeloom.solver.construct.warm_start import warm_starts
from pipeloom.solver.core.linear_instance import LinearInstance
from pipeloom.solver.core.progress import FALLBACK
from pipeloom.solver.families.applicable import build_families
from pipeloom.solver.search.constructor_search import LinearListTuner
from pipeloom.solver.search.periodic_search import search_periodic
from tests.support.large_problems import large_problem
from tests.support.random_problems import linear_problems, problems

# every setting of a constructor gives a valid schedule, or says that it gets stuck ----------------


MUTATIONS = 5
EVERY = 37
"""Which settings of the family are built."""


def assert_valid(problem: Problem, rows: Order, cost: float, bound: float) -> None:
    """Verified by the contract's rules, of this cost, and no better than the bound."""
    schedule = timed(Schedule(problem, rows, report=Report(problem.objective, "search")))
    assert verify_schedule(dump_schedule(schedule)) == []
    assert abs(schedule.known_timing.cost(problem.objective) - cost) <= 1e-9 * cost
    assert cost >= bound * (1 - 1e-9)


@given(st.data(), st.integers(1, 4), st.integers(1, 8), st.integers(0, 1 << 30))
def test_what_is_built_is_valid_and_costs_what_it_says(
    data: st.DataObject, ranks: int, microbatches: int, seed: int
) -> None:
    problem = data.draw(linear_problems(ranks, microbatches))
    linear = LinearInstance.of(problem)
    assert linear is not None
    bound, rng = lower_bound(problem).value, np.random.default_rng(seed)
    constructor = Constructor(problem, linear)
    settings_of_both = family(linear, bound, linear.lags(problem.objective))
    for parameters in islice(settings_of_both, None, None, EVERY):
        rows = constructor.build(parameters)
        if rows is not None:
            assert_valid(problem, rows, constructor.cost(rows), bound)
        if isinstance(parameters, RoundParameters):
            for _ in range(MUTATIONS):
                parameters = parameters.mutated(linear, rng)  # noqa: PLW2901
                rows = constructor.build(parameters)
                if rows is not None:
                    assert_valid(problem, rows, constructor.cost(rows), bound)


@given(st.data(), st.integers(1, 4), st.integers(1, 8), st.integers(0, 1 << 30))
def test_what_the_dispatcher_finds_is_valid(
    data: st.DataObject, ranks: int, microbatches: int, seed: int
) -> None:
    problem = data.draw(linear_problems(ranks, microbatches))
    linear = LinearInstance.of(problem)
    assert linear is not None
    best = Incumbent(problem, lower_bound(problem), SolveOptions(work_limit=0.3))
    best.offer(one_at_a_time(problem), "one-at-a-time")
    lags = linear.lags(problem.objective)
    built = [(0.0, each) for each in family(linear, best.bound.value, lags)]
    constructor, rng = Constructor(problem, linear), np.random.default_rng(seed)
    dispatcher = LinearListTuner(constructor, built, rng, problem.objective)
    if dispatcher.able:
        dispatcher.round(best)
    assert best.order is not None
    assert_valid(problem, best.order, best.cost, best.bound.value)


# the schedules that ``optimize`` begins with ------------------------------------------------------


@pytest.mark.parametrize("microbatches", [4, 6, 12])
def test_zb_h1_is_among_them_however_few_microbatches(microbatches: int) -> None:
    problem = Problem.linear(Profile((StageProfile(1.0, 1.0, 1.0),) * 6, 6), microbatches)
    found = LinearInstance.of(problem)
    assert found is not None
    wanted = [row.tolist() for row in FAMILIES["zb-h1"].build(problem).order]
    assert wanted in [[r.tolist() for r in order] for order in warm_starts(problem, found)]


@given(problem=linear_problems(3, 4))
def test_every_warm_start_runs_within_its_memory(problem: Problem) -> None:
    found = LinearInstance.of(problem)
    assert found is not None
    for order in warm_starts(problem, found):
        schedule = Schedule(problem, order)
        assert schedule.num_ops == 3 * 3 * 4
        peaks = zip(simulate(schedule).peak_memory, problem.memory_limit, strict=True)
        assert all(peak <= limit * (1 + 1e-9) for peak, limit in peaks)


# the list scheduler for any placement: what it builds is valid, and costs what it says ------------


@pytest.mark.parametrize("owners", [(0, 1, 1, 0), (0, 1, 0, 1), (1, 0, 0), (0, 2, 1, 0, 2)])
@settings(max_examples=15)
@given(data=st.data(), seed=st.integers(0, 1000))
def test_orders_are_valid_and_cost_what_the_kernel_says(
    owners: tuple[int, ...], data: st.DataObject, seed: int
) -> None:
    problem = data.draw(problems(owners, 5))
    stages, rng = Stages.of(problem), np.random.default_rng(seed)
    order = np.empty(3 * 5 * len(owners), dtype=np.int64)
    ends, spans = np.empty((2, len(owners), 5)), np.empty(problem.ranks)
    for parameters in islice(list_parameters(stages, rng), 5):
        makespan = problem.objective is Objective.MAKESPAN
        cost = list_schedule(stages, parameters, makespan, order, ends, spans)
        if np.isfinite(cost):
            rows = tuple(np.split(order, 3 * 5 * stages.offsets[1:-1]))
            schedule = timed(Schedule(problem, rows))
            assert verify_schedule(dump_schedule(schedule)) == []
            assert schedule.known_timing.cost(problem.objective) <= cost * (1 + 1e-9)


@pytest.mark.parametrize("number", [0, 1])
def test_two_copies_are_scheduled(number: int) -> None:
    problem = large_problem("two copies", number)
    stages, rng = Stages.of(problem), np.random.default_rng(0)
    assert stages.names.shape == (2, problem.microbatches // 2)
    order = np.empty(3 * problem.stages * problem.microbatches, dtype=np.int64)
    ends = np.empty((2, 2 * problem.stages, problem.microbatches // 2))
    spans, found = np.empty(problem.ranks), 0
    for parameters in islice(list_parameters(stages, rng), 20):
        cost = list_schedule(stages, parameters, False, order, ends, spans)
        if np.isfinite(cost):
            found += 1
            rows = np.split(order, 3 * (problem.microbatches // 2) * stages.offsets[1:-1])
            schedule = timed(Schedule(problem, tuple(rows)))
            assert verify_schedule(dump_schedule(schedule)) == []
            assert schedule.known_timing.cost(problem.objective) <= cost * (1 + 1e-9)
    assert found > 0


def folded(limit: float) -> Problem:
    """Four ranks, two chunks each in a V."""
    profile = Profile((StageProfile(14.4, 14.4, 9.7, 1.0, 0.43),) * 8, 4, 1.6)
    return Problem(profile, 16, Placement.v(4), (limit,) * 4)


def test_microbatches_meet_without_waiting_where_memory_is_small() -> None:
    """A microbatch holds 9 x 28.8 + 12 x 1.6 ms of chunks on each rank, and takes it 77 ms: 4
    chunks that fit, not 8."""
    assert Stages.of(folded(4.0)).meeting == pytest.approx(14.4 + 14.4 + 2 * 1.6)
    assert Stages.of(folded(8.0)).meeting == 0.0
    assert Stages.of(folded(np.inf)).meeting == 0.0


def test_annealing_its_numbers_never_loses_the_best() -> None:
    problem, rng = folded(6.0), np.random.default_rng(1)
    stages = Stages.of(problem)
    order, best = np.empty((2, 3 * 8 * 16), dtype=np.int64)
    ends, spans = np.empty((2, 8, 16)), np.empty(4)
    parameters = next(
        parameters
        for parameters in list_parameters(stages, rng)
        if np.isfinite(list_schedule(stages, parameters, False, order, ends, spans))
    )
    first = list_schedule(stages, parameters, False, order, ends, spans)
    state = np.array([7], dtype=np.uint64)
    never = np.zeros(1, dtype=np.bool_)
    cost, _ = tune_list(
        *(stages, parameters, False, best, np.inf, 20.0, 0.5, 300),
        *(order, ends, spans, state, never),
    )
    assert cost < first
    rows = tuple(np.split(best, 3 * 16 * stages.offsets[1:-1]))
    found = timed(Schedule(problem, rows))
    assert found.known_timing.period <= cost * (1 + 1e-9)  # less where F's need not be so far apart


def test_below_p_m_b_the_published_v_is_beaten() -> None:
    problem = folded(6.0)
    published = build_family("v-half", problem.profile, 16, memory_limit=6.0)
    schedule = solve(problem, solver="heuristic", work_limit=30.0)
    assert schedule.known_timing.period < 0.97 * published.known_timing.period


def test_at_p_m_b_the_published_v_is_beaten_where_b_takes_longer_than_f() -> None:
    """Seven ranks: ZB-V idles .5 % more than it has to."""
    profile = Profile((StageProfile(9.458, 9.748, 7.288, 1.0, 0.43),) * 14, 7, 0.879)
    published = build_family("zb-v", profile, 28)
    problem = Problem(profile, 28, Placement.v(7), (14.0,) * 7)
    schedule = solve(problem, solver="heuristic", work_limit=20.0)
    assert schedule.known_timing.period < 0.996 * published.known_timing.period


# the list scheduler by priorities: its orders keep memory and its own times -----------------------


def _problem(seed: int, sizes: float) -> Problem:
    """Three ranks, three stages in any order, nine microbatches."""
    rng = np.random.default_rng(seed)
    placement = Placement.of_stages(rng.permutation(3).tolist())
    draw = rng.uniform(0.5, 6, (3, 4, 9))
    draw[:, :3, 5] = 7.0  # longer than any other: known to come before others can be in its way
    stages = [dict(zip(("t_f", "t_b", "t_w", "m_b"), rows, strict=True)) for rows in draw.tolist()]
    document = {"format": "pipeloom.profile", "version": 1, "ranks": 3, "t_comm": 0.3}
    profile = parse_profile(document | {"stages": [s | {"m_w": 0.4} for s in stages]}, "profile")
    return Problem(profile, 9, placement, (sizes,) * 3)


@pytest.mark.parametrize("seed", range(6))
def test_times_are_the_simulators_and_memory_is_kept(seed: int) -> None:
    problem = _problem(seed, 6.0 + 4.0 * (seed % 3))
    tables = Stages.of(problem)
    drawn = random_priorities(3, np.random.default_rng(seed), tuple(entry_orders(problem)))
    order, scratch = np.empty(81, dtype=np.int64), Scratch.of(3, 9)
    complete = 0
    for priorities in islice(drawn, 12):
        cost = priority_schedule(tables, priorities, False, order, scratch)
        if not np.isfinite(cost):
            continue
        complete += 1
        simulator = Simulator(problem, np.arange(0, 82, 27))
        assert simulator.cost(order) <= cost * (1 + 1e-9)
        assert (simulator.peak <= np.array(problem.memory_limit) * (1 + 1e-9)).all()
        for share, expected in ((1 - 1e-9, np.inf), (1 + 1e-9, cost)):
            most = share * cost
            assert priority_schedule(tables, priorities, False, order, scratch, most) == expected
    assert complete > 0


def test_a_long_microbatch_waits_for_none_that_yields() -> None:
    problem = replace(_problem(0, 1e9), placement=Placement.linear(3))
    priorities = next(random_priorities(3, np.random.default_rng(0), (np.arange(9),)))
    priorities.key[:, 5] = -9.0  # the sixth goes before all others
    priorities.offset[:], priorities.yields[:] = 0.0, 0.0
    order, scratch = np.empty(81, dtype=np.int64), Scratch.of(3, 9)
    priority_schedule(Stages.of(problem), priorities, False, order, scratch)
    simulator = Simulator(problem, np.arange(0, 82, 27))
    simulator.cost(order)
    ops = {int(op): at for at, op in enumerate(order)}
    packed = [5 << 23 | s << 3 for s in range(3)] + [5 << 23 | s << 3 | 1 for s in (2, 1, 0)]
    starts = [float(simulator.start[ops[op]]) for op in packed]
    assert starts == pytest.approx([0.0, 7.3, 14.6, 21.6, 28.9, 36.2])


# ends of schedules that are built again, backwards in time ----------------------------------------


def test_the_end_of_zb_v_meets_the_bound_of_the_last_forward() -> None:
    stage = StageProfile(6.763, 6.969, 5.251, 1.0, 0.4324)
    zb_v = build_family("zb-v", Profile((stage,) * 32, 16, 0.755), 40)
    problem = replace(zb_v.problem, memory_limit=(32.0,) * 16)
    best = Incumbent(problem, lower_bound(problem), SolveOptions())
    best.offer(zb_v.order, "zb-v")
    assert best.cost > 1.0005 * best.bound.value
    TailBuilder(problem, np.random.default_rng(0)).round(best)
    assert best.closed


@pytest.mark.parametrize(
    ("placement", "limit"),
    [
        (Placement.v(4), 6.0),
        (Placement.interleaved(4, 2), 11.0),
        (Placement.bidirectional(4), 10.0),
    ],
    ids=["v", "interleaved", "two copies"],
)
@pytest.mark.parametrize("objective", Objective)
def test_what_is_built_is_valid_and_better(
    placement: Placement, limit: float, objective: Objective
) -> None:
    """Unequal stages, one with a W that takes no time, and limited memory."""
    rng = np.random.default_rng(3)
    stages = len(placement.owners)
    times = rng.uniform(0.8, 1.2, (stages, 3))
    times[1, 2] = 0.0
    profile = Profile(tuple(StageProfile(*row, 1.0, 0.5) for row in times.tolist()), 4, 0.1)
    problem = Problem(profile, 12, placement, (limit,) * 4, objective)
    best = Incumbent(problem, lower_bound(problem), SolveOptions())
    build_families(best)
    before, builder = best.cost, TailBuilder(problem, rng)
    for _ in range(8):
        builder.round(best)
    assert best.order is not None
    found = timed(Schedule(problem, best.order, report=Report(objective, "backward-tail")))
    assert verify_schedule(json.loads(json.dumps(dump_schedule(found)))) == []
    assert best.cost < before


# v schedules that repeat: valid at all sizes, within limits between V-Min's and V-Half's ----------


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
