"""Consecutive stages of a rank are planned as one stage."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeloom import (
    InfeasibleError,
    Objective,
    Placement,
    Problem,
    Profile,
    Schedule,
    StageProfile,
    simulate,
)
from pipeloom.ir import format_order
from pipeloom.planner.passing.candidates import expanded, planned_as_one
from tests.support.inner import FAMILIES, Op, OpKind, Timing

STAGE = StageProfile(1.0, 2.0, 1.0, 1.0, 0.5, 1e6)


def test_merged_stages_and_their_order() -> None:
    asked: list[Problem] = []

    def plan(one: Problem) -> list[list[Op]]:
        asked.append(one)
        return [[Op(OpKind.F, s, 0), Op(OpKind.BW, s, 0)] for s in range(2)]

    profile = Profile((STAGE,) * 4, 2)
    placement = Placement.of_stages((1, 1, 0, 0))
    rows = planned_as_one(Problem(profile, 1, placement, profile.limit_from(None)), plan)
    assert list(map(format_order, rows)) == ["2F0 3F0 3BW0 2BW0", "0F0 1F0 1BW0 0BW0"]
    assert asked[0].profile.stages[0] == StageProfile(2.0, 4.0, 2.0, 2.0, 1.0, 1e6)
    assert asked[0].placement.owners == (1, 0)
    row = [Op(OpKind.F, 1, 0), Op(OpKind.B, 1, 0), Op(OpKind.W, 1, 0)]
    assert format_order(expanded(row, (2, 3))) == "2F0 3F0 3B0 2B0 3W0 2W0"


AMOUNT = st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0])


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Consecutive stages on each rank, with any delays between any two ranks."""
    ranks = draw(st.integers(1, 6))
    stages = [
        StageProfile(*(draw(AMOUNT) for _ in range(4)), 0.0)
        for _ in range(draw(st.integers(ranks, ranks + 5)))
    ]
    t_comm = tuple(tuple(draw(AMOUNT) for _ in range(ranks)) for _ in range(ranks))
    limit = (sum(stage.m_b for stage in stages) * draw(st.sampled_from([1.0, 1.5, 9.0])),) * ranks
    placement = Placement.of_stages([s * ranks // len(stages) for s in range(len(stages))])
    profile, count = Profile(tuple(stages), ranks, t_comm), draw(st.integers(1, 7))
    return Problem(profile, count, placement, limit, draw(st.sampled_from(Objective)))


@given(problems(), st.sampled_from(["gpipe", "1f1b", "zb-h1", "dapple"]))
def test_it_takes_as_long_as_merged_and_holds_no_more(problem: Problem, family: str) -> None:
    plans: list[Timing] = []

    def plan(one: Problem) -> list[list[Op]]:
        schedule = FAMILIES[family].build(one)
        plans.append(schedule.known_timing)
        return [schedule.ops(rank) for rank in range(one.ranks)]

    try:
        order = planned_as_one(problem, plan)
    except InfeasibleError:
        return
    timing = simulate(Schedule.of(problem, order, family))
    for objective in Objective:
        assert timing.cost(objective) == pytest.approx(plans[0].cost(objective))
    assert max(timing.peak_memory) <= max(plans[0].peak_memory) * (1 + 1e-9)
