"""A problem in which weights travel falls apart into pipelines that are instances of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.errors import InfeasibleError, InputError
from pipeloom.ir.model.links import Sharing
from pipeloom.ir.model.ops import Op, OpKind, format_order
from pipeloom.ir.model.placement import Passing, Placement
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.profile import Link, Links, Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule, Timing
from pipeloom.solver.bounds import GENERAL, lower_bound, lower_bounds
from pipeloom.solver.core.decomposition import expanded, groups, merged, parts_of, planned_by_parts
from pipeloom.solver.families import FAMILIES
from tests.support.oracle import exhaustive_optimum

KINDS = (OpKind.F, OpKind.BW)
STAGE = StageProfile(1.0, 2.0, 1.0, 1.0, 0.5, 1e6)
SLOW = Links(Link(0.0, 10.0), ((1, 3, Link(0.0, 1.0)),))


def of(placement: Placement, stages: int, microbatches: int, **keys: Any) -> Problem:
    profile = Profile((STAGE,) * stages, 1 + max(map(max, placement.table)), **keys)
    return Problem(profile, microbatches, placement, profile.limit_from(None))


def test_each_member_of_the_islands_has_a_pipeline_of_its_own() -> None:
    problem = of(Placement.weights_inside(4, 2, 4), 4, 3, links=SLOW)
    first, second = parts_of(problem)
    assert (first.ranks, first.microbatches) == ((0, 2), (0, 2))
    assert (second.ranks, second.microbatches) == ((1, 3), (1,))
    assert first.problem.placement.owners == (0, 0, 1, 1)
    assert first.problem.profile.link_delays(1e6)[0, 1] == 0.1
    assert second.problem.profile.link_delays(1e6)[0, 1] == 1.0


def test_opposite_ranks_of_a_ring_are_no_further_apart_in_a_part() -> None:
    links = Links(Link(0.0, 10.0), ((1, 2, Link(0.0, 1.0)),), Sharing.RING)
    problem = of(Placement.weights_inside(4, 2, 4), 4, 4, links=links)
    whole = problem.profile.link_delays(1e6)
    assert whole[1, 3] > whole[3, 1]  # by way of 2, and back by way of 0
    for part in parts_of(problem):
        delays = part.problem.profile.link_delays(1e6)
        assert (delays <= whole[np.ix_(part.ranks, part.ranks)]).all()
        assert delays[0, 1] > 0


def test_each_island_may_be_a_pipeline() -> None:
    matrix = tuple(tuple(10.0 * a + b for b in range(4)) for a in range(4))
    problem = of(Placement.activations_inside(4, 2, 4), 4, 3, t_comm=matrix)
    first, second = parts_of(problem)
    assert (first.ranks, first.microbatches) == ((0, 1), (0, 2))
    assert (second.ranks, second.microbatches) == ((2, 3), (1,))
    assert second.problem.profile.t_comm == ((22.0, 23.0), (32.0, 33.0))


def test_where_weights_travel_alone_each_rank_is_a_part() -> None:
    problem = of(Placement.round_robin(3), 3, 5)
    assert [part.ranks for part in parts_of(problem)] == [(0,), (1,), (2,)]


def test_pipelines_that_cross_are_no_parts_and_give_no_bound() -> None:
    problem = of(Placement.of_ops(Passing.MIXED, 2, np.array([[0, 1], [1, 1]])), 2, 2)
    with pytest.raises(InputError, match="a rank shares some microbatches"):
        parts_of(problem)
    assert [bound.name for bound in lower_bounds(problem)] == [
        bound(problem).name for bound in GENERAL
    ]


def test_merged_stages_and_their_order() -> None:
    (part,) = parts_of(of(Placement.weights_inside(2, 1, 4), 4, 2))
    found = groups(part.problem)
    assert found == ((0, 1), (2, 3))
    one = merged(part.problem, found)
    assert one.profile.stages[0] == StageProfile(2.0, 4.0, 2.0, 2.0, 1.0, 1e6)
    row = [Op(OpKind.F, 1, 0), Op(OpKind.B, 1, 0), Op(OpKind.W, 1, 0)]
    assert format_order(expanded(row, (2, 3))) == "2F0 3F0 3B0 2B0 3W0 2W0"


def test_stages_that_come_back_to_a_rank_are_not_merged() -> None:
    assert groups(of(Placement.v(2), 4, 2)) is None


AMOUNT = st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0])


@st.composite
def problems(draw: st.DrawFn, most_ranks: int, most_stages: int, most: int) -> Problem:
    """Islands of any size, with any delays between any two ranks, where there is enough memory."""
    ranks = draw(st.integers(1, most_ranks))
    island = draw(st.sampled_from([q for q in range(1, ranks + 1) if ranks % q == 0]))
    islands = draw(st.sampled_from([Placement.weights_inside, Placement.activations_inside]))
    least = ranks // island if islands == Placement.weights_inside else island
    stages = [
        StageProfile(*(draw(AMOUNT) for _ in range(4)), 0.0)
        for _ in range(draw(st.integers(least, max(least, most_stages))))
    ]
    count = draw(st.integers(1, most))
    t_comm = tuple(tuple(draw(AMOUNT) for _ in range(ranks)) for _ in range(ranks))
    limit = (sum(stage.m_b for stage in stages) * draw(st.sampled_from([1.0, 1.5, 9.0])),) * ranks
    placement = islands(ranks, island, len(stages))
    objective = draw(st.sampled_from(Objective))
    return Problem(Profile(tuple(stages), ranks, t_comm), count, placement, limit, objective)


@given(problems(6, 6, 7), st.sampled_from(["gpipe", "1f1b", "zb-h1", "dapple"]))
def test_a_whole_takes_as_long_as_its_merged_parts_and_holds_no_more(
    problem: Problem, family: str
) -> None:
    plans: list[Timing] = []

    def plan(one: Problem) -> list[list[Op]]:
        schedule = FAMILIES[family].build(one)
        plans.append(schedule.known_timing)
        return [schedule.ops(rank) for rank in range(one.ranks)]

    try:
        order = planned_by_parts(problem, plan)
    except InfeasibleError:
        return
    timing = simulate(Schedule.of(problem, order, family))
    for objective in Objective:
        assert timing.cost(objective) == pytest.approx(max(one.cost(objective) for one in plans))
    assert max(timing.peak_memory) <= max(max(one.peak_memory) for one in plans) * (1 + 1e-9)


def test_parts_that_are_alike_are_planned_once() -> None:
    asked = []

    def plan(one: Problem) -> list[list[Op]]:
        asked.append(one)
        return [[Op(kind, s, j) for j in range(2) for kind in KINDS] for s in range(2)]

    problem = of(Placement.weights_inside(6, 3, 4), 4, 6)
    rows = planned_by_parts(problem, plan)
    assert len(asked) == 1
    assert format_order(rows[1]) == "0F1 1F1 1BW1 0BW1 0F4 1F4 1BW4 0BW4"


@given(problems(4, 3, 3))
def test_no_bound_is_above_the_best_of_all_orders(problem: Problem) -> None:
    """Weights are there at once: the parts are independent, the dearest one's optimum is the
    whole's."""
    best = max(exhaustive_optimum(part.problem) for part in parts_of(problem))
    assert lower_bound(problem).value <= best * (1 + 1e-9)
