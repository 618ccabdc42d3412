"""No bound for any map of stages to ranks is above the cost of the best of all orders."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.solver.bounds import GENERAL, PLACED, lower_bound, lower_bounds
from pipeloom.solver.bounds.rank_model import most
from pipeloom.solver.bounds.several_stages.general_placement import GeneralPlacement
from pipeloom.solver.families import build_family
from tests.support.oracle import exhaustive_optimum

AMOUNT = st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0, 7.0])


@st.composite
def problems(draw: st.DrawFn, owners: tuple[int, ...], microbatches: int) -> Problem:
    stages = []
    for _ in owners:
        m_b = draw(AMOUNT)
        m_w = m_b * draw(st.sampled_from([0.0, 0.4, 1.0]))
        stages.append(StageProfile(draw(AMOUNT), draw(AMOUNT), draw(AMOUNT), m_b, m_w))
    if draw(st.booleans()):
        stages = [stages[0]] * len(owners)
    ranks = max(owners) + 1
    delay = st.sampled_from([0.0, 0.0, 0.3, 1.0, 40.0])
    t_comm = tuple(tuple(draw(delay) for _ in range(ranks)) for _ in range(ranks))
    slack = draw(st.sampled_from([1.0, 1.2, 1.5, 2.0, math.inf]))
    needs = [
        sum(s.m_b for s, o in zip(stages, owners, strict=True) if o == r) for r in range(ranks)
    ]
    limit = tuple(need * slack if need else 0.0 for need in needs)
    return Problem(
        Profile(tuple(stages), ranks, t_comm),
        microbatches,
        Placement.of_stages(owners),
        limit,
        draw(st.sampled_from(Objective)),
    )


CASES = [
    ((0, 0), 1),
    ((0, 0), 3),
    ((0, 0, 1), 2),
    ((0, 1, 1), 2),
    ((0, 0, 1, 1), 1),
    ((1, 1, 0), 2),
    ((0, 1), 3),
    ((0, 1, 0), 2),
    ((0, 1, 0, 1), 2),
    ((0, 1, 1, 0), 2),
    ((1, 0, 0, 2), 2),
]


@pytest.mark.parametrize(("owners", "microbatches"), CASES)
@settings(max_examples=24)
@given(data=st.data())
def test_bounds_hold(owners: tuple[int, ...], microbatches: int, data: st.DataObject) -> None:
    assert_below_optimum(data.draw(problems(owners, microbatches)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owners", "microbatches"),
    [
        ((0, 0, 1), 3),
        ((0, 1, 1), 3),
        ((0, 0, 1, 1), 2),
        ((0, 1, 1, 2), 2),
        ((0, 1, 1, 0), 2),
        ((0, 1, 2, 1), 2),
    ],
)
@given(data=st.data())
def test_bounds_hold_for_many(
    owners: tuple[int, ...], microbatches: int, data: st.DataObject
) -> None:
    assert_below_optimum(data.draw(problems(owners, microbatches)))


def assert_below_optimum(problem: Problem) -> None:
    best = exhaustive_optimum(problem) * (1 + 1e-9)
    placed = GeneralPlacement.of(problem)
    assert {b.name: b.value for bound in GENERAL if (b := bound(problem)).value > best} == {}
    assert {b.name: b.value for bound in PLACED if (b := bound(placed)).value > best} == {}


def uniform(limit: float, objective: Objective = Objective.PERIOD) -> Problem:
    """Two ranks with two stages each, unit times, nothing between."""
    profile = Profile((StageProfile(1.0, 1.0, 1.0, 1.0, 1.0),) * 4, 2)
    placement = Placement.of_stages((0, 0, 1, 1))
    return Problem(profile, 8, placement, (limit,) * 2, objective)


def test_little_memory_makes_the_first_rank_wait() -> None:
    """Two stages fit: 6 ms until the first B, 2 of F's; the last F is 5 ms from its B, 1 its
    own."""
    bounds = {bound.name: bound.value for bound in lower_bounds(uniform(2.0))}
    assert bounds["work"] == 48.0
    assert bounds["head-tail"] == 48.0 + 4.0 + 4.0


def test_with_room_the_makespan_still_takes_the_way_there_and_back() -> None:
    """All F's and B's of rank 1, its way there and back, and rank 0's last W."""
    bounds = {b.name: b.value for b in lower_bounds(uniform(99.0, Objective.MAKESPAN))}
    assert bounds["through"] == 8 * 4.0 + 2.0 + 2.0 + 1.0


def test_few_chunks_that_fit_turn_over_slowly() -> None:
    """In a V of two ranks a microbatch holds 8 + 2 ms of chunks on one and 6 + 4 on the other; 2.9
    hold two."""
    profile = Profile((StageProfile(1.0, 1.0, 0.0, 1.0, 0.0),) * 4, 2)
    problem = Problem(profile, 40, Placement.wave(2, 1), (2.9, 2.9))
    bound = lower_bound(problem)
    assert bound.name == "turnover"
    assert bound.value == pytest.approx(40 * (8 + 2) / 2, abs=4)
    assert bound.value > 40 * (8 + 2) / 2


def test_most_is_a_whole_number_where_sizes_are_equal() -> None:
    times, sizes = np.array([3.0, 5.0]), np.array([2.0, 2.0])
    assert most(times, sizes, 7.0, 2) == 5.0 + 5.0 + 3.0
    assert most(times, sizes, -1.0, 2) == 0.0
    assert most(times, np.array([2.0, 4.0]), 3.0, 9) == 4.5
    assert most(times, np.array([0.0, 4.0]), 2.0, 2) == 6.0 + 2.5


@pytest.mark.parametrize("ranks", [4, 7, 16])
def test_zb_v_is_optimal_where_t_f_is_t_b_and_memory_is_p_m_b(ranks: int) -> None:
    """The last rank holds 2 P chunks when its last F starts, so (P-1)(2 f + 6 c) - (2P-1) w are
    idle."""
    chunk = StageProfile(14.4, 14.4, 9.7, 1.0, 0.5)
    schedule = build_family("zb-v", Profile((chunk,) * 2 * ranks, ranks, 1.6), 3 * ranks)
    problem = replace(schedule.problem, memory_limit=(2.0 * ranks,) * ranks)
    bound = lower_bound(problem)
    assert bound.name == "last-forward"
    idle = (ranks - 1) * (2 * 14.4 + 6 * 1.6) - (2 * ranks - 1) * 9.7
    assert bound.value == pytest.approx(3 * ranks * 2 * (14.4 + 14.4 + 9.7) + idle)
    assert schedule.known_timing.period == pytest.approx(bound.value)
