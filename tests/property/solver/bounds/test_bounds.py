"""No bound is above the cost of the best of all orders of a tiny problem."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule, Status
from pipeloom.ir.verify.certificates.rows import NotProvenError
from pipeloom.ir.verify.certificates.slots import crossings as certified_crossings
from pipeloom.ir.verify.certificates.slots import slots as certified_slots
from pipeloom.solver.bounds import GENERAL, LINEAR, lower_bound, lower_bounds
from pipeloom.solver.bounds.low_memory.activation_slots import slots
from pipeloom.solver.bounds.low_memory.crossings import crossings, slowest_stage
from pipeloom.solver.bounds.low_memory.crossings_search import (
    CrossingsSearch,
    counts,
    crossings_bound,
)
from pipeloom.solver.bounds.milp_relaxation import relaxation
from pipeloom.solver.bounds.several_stages.general_placement import GeneralPlacement
from pipeloom.solver.construct.one_at_a_time import one_at_a_time
from pipeloom.solver.core.linear_instance import LinearInstance
from pipeloom.solver.core.stopping import Budget, Interrupt
from pipeloom.solver.optimize import optimize
from tests.support.certified import facts_of
from tests.support.oracle import exhaustive_optimum

AMOUNT = st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0, 7.0])


@st.composite
def stage_profiles(draw: st.DrawFn) -> StageProfile:
    m_b = draw(AMOUNT)
    m_w = m_b * draw(st.sampled_from([0.0, 0.4, 1.0]))
    return StageProfile(draw(AMOUNT), draw(AMOUNT), draw(AMOUNT), m_b, m_w)


@st.composite
def problems(draw: st.DrawFn, ranks: int, microbatches: int) -> Problem:
    stages = draw(st.lists(stage_profiles(), min_size=ranks, max_size=ranks))
    if draw(st.booleans()):
        stages = [stages[0]] * ranks
    delay = st.sampled_from([0.0, 0.0, 0.3, 1.0, 40.0])
    matrix = tuple(tuple(draw(delay) for _ in range(ranks)) for _ in range(ranks))
    t_comm = draw(st.one_of(delay, st.just(matrix)))
    slack = st.sampled_from([0.0, 0.4, 1.0, 1.5, 2.0, math.inf])
    limit = tuple(stage.m_b * (1 + draw(slack)) if stage.m_b else 0.0 for stage in stages)
    return Problem(
        Profile(tuple(stages), ranks, t_comm),
        microbatches,
        Placement.linear(ranks),
        limit,
        draw(st.sampled_from(Objective)),
    )


def proven_by_slots(problem: Problem) -> Iterator[float]:
    """As certificates have it, of all stages."""
    facts = facts_of(problem)
    for stage, argument in product(range(problem.stages), (certified_slots, certified_crossings)):
        with suppress(NotProvenError):
            yield float(argument(facts, stage))


def assert_below_optimum(problem: Problem) -> None:
    least = exhaustive_optimum(problem)
    best = least * (1 + 1e-9)
    linear = LinearInstance.of(problem)
    assert linear is not None
    lags = linear.lags(problem.objective)
    assert max(bound(problem).value for bound in GENERAL) <= best
    placed = GeneralPlacement.of(problem)
    assert {b.name: b.value for bound in LINEAR if (b := bound(placed)).value > best} == {}
    assert max(proven_by_slots(problem)) <= best
    for ceiling in {least, 1.1 * least}:  # the cost of the optimum, of any other schedule
        assert relaxation(linear, problem.objective, ceiling) <= best
        assert crossings_bound(linear, lags, ceiling) <= best


@pytest.mark.parametrize(
    ("ranks", "microbatches"), [(1, 3), (1, 4), (2, 1), (2, 2), (2, 3), (3, 1), (3, 2), (3, 3)]
)
@settings(max_examples=25)
@given(data=st.data())
def test_bounds_hold(ranks: int, microbatches: int, data: st.DataObject) -> None:
    assert_below_optimum(data.draw(problems(ranks, microbatches)))


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "microbatches"), [(2, 3), (2, 4), (3, 3), (4, 2)])
@given(data=st.data())
def test_bounds_hold_for_many_problems(ranks: int, microbatches: int, data: st.DataObject) -> None:
    assert_below_optimum(data.draw(problems(ranks, microbatches)))


FLOATS = st.floats(0.3, 9.7)


@st.composite
def rounded_problems(draw: st.DrawFn) -> Problem:
    """Two stages, often equal, whose memory holds a whole number of M_B's, as rounded."""
    stages = [StageProfile(draw(FLOATS), draw(FLOATS), draw(FLOATS), draw(FLOATS))]
    second = StageProfile(draw(FLOATS), draw(FLOATS), draw(FLOATS), draw(FLOATS))
    stages.append(draw(st.sampled_from([*stages, second])))
    share = draw(st.sampled_from([0.0, 0.4, 1.0]))
    stages = [replace(stage, m_w=share * stage.m_b) for stage in stages]
    number = draw(st.integers(1, 4))
    above = draw(st.sampled_from([0.0, 0.07]))
    limit = tuple(number * stage.m_b * (1 + above) for stage in stages)
    profile = Profile(tuple(stages), 2, draw(st.sampled_from([0.0, 4.0])))
    objective = draw(st.sampled_from(Objective))
    return Problem(profile, 4, Placement.linear(2), limit, objective)


@pytest.mark.parametrize("examples", [25, pytest.param(300, marks=pytest.mark.slow)])
def test_bounds_hold_for_sizes_that_are_no_round_numbers(examples: int) -> None:
    settings(max_examples=examples)(given(problem=rounded_problems())(assert_below_optimum))()


@pytest.mark.parametrize("objective", Objective)
def test_a_room_is_not_rounded_down_twice(objective: Objective) -> None:
    """``last-forward`` was 73.425: of the 3 M_B's that fit, it left room for 2."""
    m_b = 0.882741929813333
    stage = StageProfile(7.3777209599054494, 1.5985631573881287, 7.071263730318456, m_b, m_b)
    problem = Problem.linear(Profile((stage,) * 2, 2, 4.0), 4, 2.709581261336364, objective)
    assert_below_optimum(problem)
    schedule = optimize(problem, solver="heuristic", work_limit=1e6)
    assert schedule.known_report.status is Status.OPTIMAL


@given(problem=problems(3, 2))
def test_the_bound_is_the_best_of_all(problem: Problem) -> None:
    bound = lower_bound(problem)
    assert bound in list(lower_bounds(problem))
    assert all(bound.value >= general(problem).value for general in GENERAL)


def test_the_relaxation_can_beat_every_bound_in_closed_form() -> None:
    stages = tuple(StageProfile(*times) for times in ((3, 1, 1), (1, 1, 3), (3, 2, 4)))
    problem = Problem.linear(Profile(stages, 3, 0.5), 3, 2.0)
    linear = LinearInstance.of(problem)
    assert linear is not None
    assert lower_bound(problem).value == pytest.approx(27.0)
    assert exhaustive_optimum(problem) == 28.0
    value = relaxation(linear, problem.objective, 30.0)
    assert value == pytest.approx(28.0, rel=1e-6)


@pytest.mark.parametrize("objective", Objective)
def test_one_microbatch_at_a_time_is_the_best_where_no_second_one_fits(
    objective: Objective,
) -> None:
    stages = tuple(StageProfile(*times, 1.0, 0.5) for times in ((3, 1, 1), (1, 1, 3), (3, 2, 4)))
    problem = Problem.linear(Profile(stages, 3, 0.5), 20, 1.0, objective)
    bound = lower_bound(problem)
    assert bound.name == "slots"
    schedule = Schedule(problem, one_at_a_time(problem))
    assert bound.value == pytest.approx(simulate(schedule).cost(objective))


def test_two_microbatches_under_way_meet_in_steps_of_a_stage() -> None:
    """Slots alone allow a microbatch every (4 x 2 + 0.6) / 2 = 4.3; halfway, stages 0 to 1 and 2 to
    3 take 2 x 2 each, and the slot's W the 0.6: one every 4.6."""
    stage = StageProfile(1.0, 1.0, 0.6, 1.0, 0.5)
    problem = Problem.linear(Profile((stage,) * 4, 4, 0.0), 40, 2.0)
    linear = LinearInstance.of(problem)
    assert linear is not None
    lags = linear.lags(problem.objective)
    assert slots(linear, lags).value == pytest.approx(20 * 8.6, abs=8)
    assert crossings(linear, lags).value == pytest.approx(40 * 4.6, abs=8)
    schedule = optimize(problem, solver="heuristic")
    assert schedule.known_report.status is Status.OPTIMAL


@st.composite
def tight_problems(draw: st.DrawFn) -> Problem:
    """Two stages, four microbatches, three of which fit: all of these meet."""
    times = st.sampled_from([0.0, 1.0, 1.2, 2.0])
    weights = draw(st.sampled_from([0.0, 0.4, 1.0]))
    stages = tuple(
        StageProfile(draw(times), draw(times), draw(times), 1.0, weights) for _ in range(2)
    )
    delay = draw(st.sampled_from([0.0, 0.3, 4.0]))
    limit = draw(st.sampled_from([3.0, 3.5]))
    return Problem.linear(Profile(stages, 2, delay), 4, limit, draw(st.sampled_from(Objective)))


@pytest.mark.slow
@given(problem=tight_problems())
def test_crossings_hold_where_several_microbatches_meet(problem: Problem) -> None:
    linear = LinearInstance.of(problem)
    assert linear is not None
    least = exhaustive_optimum(problem)
    for ceiling in (least, 1.2 * least, 2 * least):
        bound = crossings_bound(linear, linear.lags(problem.objective), ceiling)
        assert bound <= least * (1 + 1e-9)


@st.composite
def slotted_problems(draw: st.DrawFn) -> Problem:
    """Two to five slots, more microbatches: small enough for an exact solver, not for the
    oracle."""
    times = st.sampled_from([0.0, 0.3, 1.0, 1.7, 2.5])
    ranks, slots_ = draw(st.integers(2, 3)), draw(st.integers(2, 5))
    stages = tuple(
        StageProfile(draw(times), draw(times), draw(times), 1.0, draw(st.sampled_from([0, 0.4, 1])))
        for _ in range(ranks)
    )
    limit = slots_ + draw(st.sampled_from([0.0, 0.5]))
    profile = Profile(stages, ranks, draw(st.sampled_from([0.0, 0.1, 0.5, 3.0])))
    microbatches = slots_ + draw(st.integers(1, 3))
    return Problem.linear(profile, microbatches, limit, draw(st.sampled_from(Objective)))


@pytest.mark.parametrize("examples", [8, pytest.param(150, marks=pytest.mark.slow)])
def test_every_pass_of_every_number_under_way_holds(examples: int) -> None:
    @settings(max_examples=examples)
    @given(problem=slotted_problems())
    def check(problem: Problem) -> None:
        solved = optimize(problem, solver="cp-sat", time_limit=60)
        assume(solved.known_report.status is Status.OPTIMAL)
        least = solved.known_timing.cost(problem.objective)
        linear = LinearInstance.of(problem)
        assert linear is not None
        i = slowest_stage(linear)
        assume(linear.capacity[i] < linear.microbatches and least > 0)
        lag = float(linear.lags(problem.objective)[i])
        for ceiling in (1.1 * least, 2 * least):
            for count in {2, *counts(int(linear.capacity[i]))}:
                search = CrossingsSearch(linear, i, count, ceiling - lag)
                for states in (3, 30, 300, 3000):
                    assert search.run(states, Budget()) + lag <= least * (1 + 1e-9)

    check()


def test_the_search_sees_that_four_slots_on_eight_stages_meet_in_steps_of_two() -> None:
    """Four of two stages: 2 x 2 and the W of 0.6 in one of them, so a microbatch every 4.6."""
    stage = StageProfile(1.0, 1.0, 0.6, 1.0, 0.5)
    problem = Problem.linear(Profile((stage,) * 8, 8, 0.0), 16, 4.0)
    linear = LinearInstance.of(problem)
    assert linear is not None
    lags = linear.lags(problem.objective)
    value = crossings_bound(linear, lags, 16 * 4.6 + 8)
    assert max(slots(linear, lags).value, crossings(linear, lags).value) + 1 < value


def test_the_relaxation_ends_when_it_is_stopped() -> None:
    stage = StageProfile(29.718, 29.444, 19.927, 1.0, 0.432)
    problem = Problem.linear(Profile((stage,) * 64, 64, 0.527), 1024, 128.0)
    linear = LinearInstance.of(problem)
    assert linear is not None
    ceiling = lower_bound(problem).value * 1.02
    never = Budget(interrupt=Interrupt(raised=True))
    assert relaxation(linear, problem.objective, ceiling, never) <= ceiling
