"""What the optimizer does with recomputation and offload: bounds below every schedule, limits that
nothing else keeps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations, pairwise, permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.gaps.instances import problem_of as gap_problem
from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.cost.remat import OFFLOADED, RECOMPUTED, STAYS, choice_of, held, pulled
from pipeloom.ir.cost.simulator import Simulator, simulate, timed
from pipeloom.ir.errors import InfeasibleError
from pipeloom.ir.formats import dump_schedule
from pipeloom.ir.model.links import Link
from pipeloom.ir.model.ops import IntArray, Op, OpKind, offsets_of, pack
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule, Status
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.solver.bounds import lower_bounds
from pipeloom.solver.bounds.feasibility import smallest_limit
from pipeloom.solver.bounds.milp_relaxation import remat_relaxation
from pipeloom.solver.core.incumbent import Incumbent
from pipeloom.solver.core.options import SolveOptions
from pipeloom.solver.core.relaxations import plain, without_offloading, without_recomputing
from pipeloom.solver.core.stopping import Budget
from pipeloom.solver.optimize import optimize
from pipeloom.solver.remat.keeping import kept
from pipeloom.solver.remat.list_tuner import RematListTuner
from pipeloom.solver.remat.portfolio import one_at_a_time_with_remat
from pipeloom.solver.remat.whole_stages import reductions
from tests.property.ir.test_remat import lever_schedules


@given(lever_schedules(), st.sampled_from(Objective))
def test_no_bound_is_above_a_schedule(schedule: Schedule, objective: Objective) -> None:
    timing = simulate(schedule)
    problem = replace(schedule.problem, memory_limit=timing.peak_memory, objective=objective)
    cost = timing.cost(objective)
    for bound in lower_bounds(problem):
        assert bound.value <= cost * (1 + 1e-9), bound
    relaxed = remat_relaxation(problem, 1.5 * cost, Budget(ops=1e7))
    assert relaxed is None or relaxed.value <= cost


@given(lever_schedules(), st.booleans())
def test_one_at_a_time_keeps_the_smallest_limit(schedule: Schedule, every: bool) -> None:
    limit, _ = smallest_limit(schedule.problem)
    problem = replace(schedule.problem, memory_limit=(limit,) * schedule.problem.ranks)
    alone = timed(Schedule(problem, one_at_a_time_with_remat(problem, every=False)))
    assert max(alone.known_timing.peak_memory) <= limit * (1 + 1e-9)
    if every:
        simulate(Schedule(problem, one_at_a_time_with_remat(problem, every=True)))
    if limit > 0:
        below = replace(problem, memory_limit=(limit * 0.99,) * problem.ranks)
        with pytest.raises(InfeasibleError):
            next(lower_bounds(below))


STAGE = StageProfile(4.0, 5.0, 3.0, m_b=10.0, m_w=4.0, t_r=4.0, m_r=1.0, m_o=1.0, offload_bytes=3.0)
PROFILE = Profile((STAGE,) * 4, 2, t_comm=0.5, host_link=Link(0.0, 1e-6))


def posed(profile: Profile, limit: float, microbatches: int = 4) -> Problem:
    return Problem(profile, microbatches, Placement.v(2), (limit,) * 2)


@pytest.mark.parametrize(
    ("profile", "kinds"),
    [
        (without_offloading(PROFILE), {OpKind.R}),
        (without_recomputing(PROFILE), {OpKind.O, OpKind.L}),
        (PROFILE, {OpKind.R, OpKind.O, OpKind.L}),
    ],
)
def test_a_limit_that_nothing_else_keeps(profile: Profile, kinds: set[OpKind]) -> None:
    problem = posed(profile, 14.0)
    with pytest.raises(InfeasibleError):
        next(lower_bounds(plain(problem)))
    found = optimize(problem, work_limit=5.0)
    assert verify_schedule(dump_schedule(found)) == []
    used = {op.kind for rank in range(2) for op in found.ops(rank)} - {*list(OpKind)[:4]}
    assert used
    assert used <= kinds
    alone = simulate(Schedule(problem, one_at_a_time_with_remat(problem, every=False)))
    assert found.known_timing.period < 0.9 * alone.period
    again = optimize(problem, work_limit=5.0)
    assert [row.tolist() for row in again.order] == [row.tolist() for row in found.order]


def test_all_are_recomputed_where_that_is_asked_for() -> None:
    problem = posed(PROFILE, 30.0)
    found = optimize(problem, work_limit=8.0, recompute_all=True)
    assert (choice_of(problem, found.order) == 1).all()


def test_where_memory_is_no_matter_no_lever_is_pulled() -> None:
    found = optimize(posed(PROFILE, 1000.0), work_limit=8.0)
    assert (choice_of(found.problem, found.order) == 0).all()


def test_forwards_may_take_no_time() -> None:
    stages = tuple(replace(stage, t_f=0.0, t_r=0.0, t_bw=7.0) for stage in PROFILE.stages)
    found = optimize(
        posed(replace(PROFILE, stages=stages), 24.0, 2), solver="heuristic", work_limit=0.02
    )
    assert verify_schedule(dump_schedule(found)) == []


@pytest.mark.filterwarnings("error")
def test_a_stage_may_take_no_time() -> None:
    problem = without_offload(seeded(0, 21.0))
    first, *others = problem.profile.stages
    stages = (replace(first, t_f=0.0, t_b=0.0, t_w=0.0, t_bw=None), *others)
    problem = replace(problem, profile=replace(problem.profile, stages=stages))
    tuner = RematListTuner.of(problem, np.random.default_rng(0))
    assert tuner is not None
    for rows in tuner.first():
        assert max(simulate(Schedule(problem, rows)).peak_memory) <= 21.0 * (1 + 1e-9)


@pytest.mark.parametrize(("limit", "m_w"), [(13.0, 4.0), (24.0, 0.5)])
def test_every_reduction_keeps_the_limit(limit: float, m_w: float) -> None:
    stages = tuple(replace(stage, m_w=m_w) for stage in PROFILE.stages)
    problem = posed(replace(PROFILE, stages=stages), limit)
    built = 0
    for reduction in reductions(problem, every=False):
        reduced = reduction.reduced
        if reduced is None:
            continue
        try:
            found = optimize(reduced, solver="heuristic", work_limit=0.1)
        except InfeasibleError:
            continue
        built += 1
        schedule = timed(Schedule(problem, reduction.expanded(found.order)))
        assert verify_schedule(dump_schedule(schedule)) == []
    assert built


@pytest.mark.parametrize(("limit", "left"), [(10.0, 3), (29.0, 2), (40.0, 0)])
def test_what_has_room_is_not_recomputed(limit: float, left: int) -> None:
    """Four F's, then each R with its B and W: as many stay as fit at once."""
    stage = StageProfile(4.0, 5.0, 3.0, m_b=10.0, m_w=0.0, t_r=4.0, m_r=0.0)
    problem = Problem(Profile((stage,), 1), 4, Placement.linear(1), (limit,))
    back = [Op(kind, 0, j) for j in range(4) for kind in (OpKind.R, OpKind.B, OpKind.W)]
    rows = (pack([*(Op(OpKind.F, 0, j) for j in range(4)), *back]),)
    found = kept(problem, rows)
    assert simulate(Schedule(problem, found)).peak_memory[0] <= limit
    assert int((choice_of(problem, found) == 1).sum()) == left


def test_little_work_has_room_for_the_relaxation() -> None:
    """A round of the list scheduler is longer than all of this work."""
    report = optimize(without_offload(seeded(0, 21.0)), work_limit=2.0).known_report
    assert report.bound == "remat-relaxation"
    assert report.status is Status.OPTIMAL


def test_listed_schedules_keep_the_limit() -> None:
    problem = without_offload(seeded(0, 21.0))
    tuner = RematListTuner.of(problem, np.random.default_rng(0))
    assert tuner is not None
    best = Incumbent(problem, next(lower_bounds(problem)), SolveOptions(work_limit=1.0))
    rows = list(tuner.round(best))
    assert rows
    assert best.work.used < 0.5e6  # of a million
    for each in rows:
        timing = simulate(Schedule(problem, each))
        assert max(timing.peak_memory) <= 21.0 * (1 + 1e-9)
        assert (
            timing.period
            < simulate(Schedule(problem, one_at_a_time_with_remat(problem, every=False))).period
        )


def without_offload(problem: Problem) -> Problem:
    return replace(problem, profile=without_offloading(problem.profile))


def exhaustive(problem: Problem) -> float:
    """The least period of one rank with one stage: every choice, in every order."""
    best = np.inf
    ways = {0: (), 1: (OpKind.R,), 2: (OpKind.O, OpKind.L)}
    for choice in product(ways, repeat=problem.microbatches):
        kinds = [(OpKind.F, *ways[c], OpKind.BW) for c in choice]
        names = [j for j, own in enumerate(kinds) for _ in own]
        for row in set(permutations(names)):
            left = [list(own) for own in kinds]
            ops = [Op(left[j].pop(0), 0, j) for j in row]
            timing = simulate(Schedule(problem, (pack(ops),)))
            if timing.peak_memory[0] <= problem.memory_limit[0]:
                best = min(best, timing.period)
    return float(best)


@pytest.mark.parametrize("limit", [10.0, 11.0, 19.0, 20.0])
def test_the_least_period_of_two_microbatches(limit: float) -> None:
    profile = Profile((STAGE,), 1, host_link=Link(0.0, 1e-6))
    problem = Problem(profile, 2, Placement.linear(1), (limit,))
    least = exhaustive(problem)
    found = optimize(problem, work_limit=2.0)
    assert found.known_report.known_bound <= least
    assert found.known_timing.period == pytest.approx(least)


def rows_that_fit(problem: Problem, rank: int) -> list[tuple[IntArray, tuple[int, ...]]]:
    """Every order of a rank of two microbatches, recomputed, offloaded or neither, that
    its memory holds, with the choices."""
    rows, costs = [], Costs.of(problem)
    ways: dict[int, tuple[OpKind, ...]] = {STAYS: ()}
    if np.isfinite(costs.durations[OpKind.R, rank]):
        ways[RECOMPUTED] = (OpKind.R,)
    if np.isfinite(costs.durations[OpKind.O, rank]):
        ways[OFFLOADED] = OpKind.O, OpKind.L
    for choice in product(ways, repeat=2):
        kinds = [(OpKind.F, *ways[way], OpKind.B, OpKind.W) for way in choice]
        names = [j for j, own in enumerate(kinds) for _ in own]
        for places in combinations(range(len(names)), len(kinds[0])):
            left = [list(own) for own in kinds]
            turns = [0 if at in places else 1 for at in range(len(names))]
            row = pack(Op(left[j].pop(0), rank, j) for j in turns)
            if held(problem, (row,))[0].max() <= problem.memory_limit[rank]:
                rows.append((row, choice))
    return rows


def least_of_two_ranks(problem: Problem) -> float:
    """The least cost of two microbatches on two ranks: every order with every choice."""
    best, costs = np.inf, Costs.of(problem)
    for pair in product(*(rows_that_fit(problem, rank) for rank in range(2))):
        rows, choices = zip(*pair, strict=True)
        simulator = Simulator(problem, offsets_of(rows), costs)
        if simulator.run(np.concatenate(rows), np.array(choices, dtype=np.int8)):
            first, last = simulator.start[[0, len(rows[0])]], simulator.end[[len(rows[0]) - 1, -1]]
            period = problem.objective is Objective.PERIOD
            cost = (last - first).max() if period else last.max() - first.min()
            best = min(best, float(cost))
    return best


@pytest.mark.parametrize("limit", [11.0, 12.0])
def test_the_least_period_of_two_ranks(limit: float) -> None:
    stages = (STAGE, StageProfile(3.0, 2.0, 4.0, m_b=9.0, m_w=5.0, t_r=2.0, m_r=2.0))
    profile = without_offloading(Profile(stages, 2, t_comm=0.5))
    problem = Problem(profile, 2, Placement.linear(2), (limit,) * 2)
    least = least_of_two_ranks(problem)
    found = optimize(problem, work_limit=2.0)
    assert found.known_timing.period == pytest.approx(least)
    assert max(bound.value for bound in lower_bounds(problem)) <= least * (1 + 1e-9)


def recomputed(seed: int) -> Problem:
    """Two stages that may be recomputed, a rank each, of little memory."""
    random = np.random.default_rng(seed)

    def stage() -> StageProfile:
        f, b, w = random.choice([1.0, 2.0, 3.0, 4.0, 5.0], 3).tolist()
        t_r, m_r = float(random.choice([0.5, 1.0, 2.0, 3.0])), float(random.integers(9))
        m_w = float(random.choice([0.0, 4.0, 8.0]))
        return StageProfile(f, b, w, m_b=10.0, m_w=m_w, t_r=t_r, m_r=m_r)

    profile = Profile((stage(), stage()), 2, t_comm=float(random.choice([0.0, 0.5, 2.0])))
    limit = tuple(random.choice([11.0, 12.0, 13.0], 2).tolist())
    objective = list(Objective)[int(random.integers(2))]
    return Problem(profile, 2, Placement.linear(2), limit, objective)


@pytest.mark.parametrize("seed", range(8))
def test_the_least_cost_with_recomputation(seed: int) -> None:
    problem = recomputed(seed)
    least = least_of_two_ranks(problem)
    found = optimize(problem, work_limit=1.0)
    assert verify_schedule(dump_schedule(found)) == []
    assert found.known_timing.cost(problem.objective) == pytest.approx(least)
    assert max(bound.value for bound in lower_bounds(problem)) <= least * (1 + 1e-9)
    relaxed = remat_relaxation(problem, 1.5 * least, Budget())
    assert relaxed is not None
    assert relaxed.value <= least


def crowded(seed: int) -> Problem:
    """Two stages, a rank each, offloaded; beside one that is away hardly an M_B has room."""
    random = np.random.default_rng(seed)
    times = random.choice([0.0, 1.0, 2.0, 3.5], (2, 4)).tolist()
    m_w, m_o = random.choice([0.0, 4.0, 10.0]), random.choice([0.0, 2.0])
    stages = tuple(
        StageProfile(f, b, w, 10.0, float(m_w), m_o=float(m_o), offload_bytes=copy)
        for f, b, w, copy in times
    )
    profile = Profile(stages, 2, t_comm=float(random.choice([0.0, 1.0])), host_link=Link(0.0, 1e-6))
    limit = tuple(random.choice([10.0, 11.0, 12.0], 2).tolist())
    return Problem(profile, 2, Placement.linear(2), limit, list(Objective)[seed % 2])


def holds_of_crowded(seeds: Iterable[int]) -> int:
    """Checks their bounds against every order and choice; how many of them cost anything."""
    decided = 0
    for seed in seeds:
        problem = crowded(seed)
        least = least_of_two_ranks(problem)
        assert max(bound.value for bound in lower_bounds(problem)) <= least * (1 + 1e-9), seed
        decided += least > 0.0
    return decided


def test_what_need_not_be_offloaded_stays() -> None:
    assert holds_of_crowded(range(6)) > 4


@pytest.mark.slow
def test_what_need_not_be_offloaded_stays_in_hundreds() -> None:
    assert holds_of_crowded(range(300)) > 270


def test_offload_that_frees_no_place_is_proven_of_no_use() -> None:
    found = optimize(gap_problem("offload", 0, 17), work_limit=8.0)
    assert found.known_report.status is Status.OPTIMAL
    assert not pulled(found.order)


def test_at_once_there_is_more_than_one_microbatch_at_a_time() -> None:
    stage = replace(STAGE, m_o=None, offload_bytes=None)
    problem = Problem(Profile((stage,) * 4, 4, t_comm=0.5), 64, Placement.linear(4), (24.0,) * 4)
    found = optimize(problem, time_limit=0.0)
    alone = simulate(Schedule(problem, one_at_a_time_with_remat(problem, every=False)))
    assert found.known_timing.period < 0.5 * alone.period


def seeded(seed: int, limit: float) -> Problem:
    """Three unequal stages, a rank each, which may be recomputed, or offloaded faster or more
    slowly."""
    random = np.random.default_rng(seed)
    times, copies = random.uniform(2.0, 6.0, (3, 5)), random.uniform(1.0, 6.0, 3)
    stages = [
        StageProfile(f, b, w, 10.0, m_w, t_r=r, m_r=1.0, m_o=1.0, offload_bytes=copy)
        for (f, b, w, r, m_w), copy in zip(times.tolist(), copies.tolist(), strict=True)
    ]
    profile = Profile(tuple(stages), 3, t_comm=0.5, host_link=Link(0.0, 1e-6))
    return Problem(profile, 5, Placement.linear(3), (limit,) * 3)


@pytest.mark.parametrize("seed", range(2))
def test_more_memory_is_never_worse(seed: int) -> None:
    """Below M_B twice, plain schedules take one microbatch at a time; from 20 on they are the
    search's first."""
    limits = 10.0, 13.0, 18.0, 20.0, 23.0, 30.0
    found = [optimize(seeded(seed, limit), work_limit=1.0) for limit in limits]
    periods = [schedule.timing.period for schedule in found if schedule.timing is not None]
    assert len(periods) == len(limits)
    for less, more in pairwise(periods):
        assert more <= less * (1 + 1e-9), periods


@pytest.mark.parametrize("seed", range(4))
def test_levers_pay_where_plain_schedules_fit(seed: int) -> None:
    problem = seeded(seed, 20.0)
    with_remat, without = (optimize(p, work_limit=2.0) for p in (problem, plain(problem)))
    assert with_remat.known_timing.period < without.known_timing.period
    assert pulled(with_remat.order)


@pytest.mark.parametrize("seed", range(4))
def test_one_microbatch_at_a_time_is_proven_where_no_more_fits(seed: int) -> None:
    found = optimize(seeded(seed, 10.0), work_limit=2.0)
    assert found.known_report.status is Status.OPTIMAL


def test_the_head_is_paid_for_by_recomputing_or_by_waiting() -> None:
    """Rank 0's first B is 15 after its first F, 2 of whose M_B fit: 7 idle, or each F more costs an
    R of 3."""
    stage = StageProfile(4.0, 3.0, 1.0, m_b=10.0, t_r=3.0, m_r=0.0)
    problem = Problem(Profile((stage,) * 2, 2, t_comm=2.0), 4, Placement.linear(2), (20.0,) * 2)
    named = {bound.name: bound.value for bound in lower_bounds(problem)}
    assert named["remat-head"] == 4 * 8 + 6  # two more F's: no idle time, two R's


def test_places_in_memory_are_paid_for_by_copies() -> None:
    """One M_B fits, so that each microbatch takes the only place for as long as it stays, 4 + 2 + 4
    + 3 + 2 and its B, or for its F, both copies and B; the last one's copies are not waited for."""
    stage = StageProfile(4.0, 3.0, 1.0, m_b=10.0, m_o=0.0, offload_bytes=5.0)
    profile = Profile((stage,) * 2, 2, t_comm=2.0, host_link=Link(0.0, 1e-6))
    problem = Problem(profile, 4, Placement.linear(2), (19.0,) * 2)
    relaxed = remat_relaxation(problem, 200.0, Budget())
    assert relaxed is not None
    assert relaxed.value == pytest.approx(4 * (4 + 2 * 5 + 3) + 1, rel=1e-5)
    assert relaxed.rank == 0
    assert max(bound.value for bound in lower_bounds(problem)) < relaxed.value
    assert [line for line in relaxed.explained() if "one microbatch more" in line]
    found = optimize(problem, work_limit=4.0)
    assert found.known_timing.period >= relaxed.value


def test_ways_beyond_all_numbers_leave_the_bound_of_the_others(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """SCIP told the terminal of coefficients that are infinite, and proved nothing."""

    def bound(t_r: float | None) -> float:
        stage = StageProfile(1.0, 1.0, 1.0, 1.0, 0.5, t_r=t_r, m_r=None if t_r is None else 0.25)
        profile = Profile((replace(stage, m_o=0.25),) * 3, 3, host_link=Link(0.1, 1e-9))
        problem = Problem(profile, 4, Placement.linear(3), (1.5,) * 3)
        relaxed = remat_relaxation(problem, 60.0, Budget())
        assert relaxed is not None
        return relaxed.value

    assert bound(1e80) == pytest.approx(bound(None), rel=1e-6)
    assert bound(1e80) > bound(0.01) * 1.01
    assert capfd.readouterr() == ("", "")
