"""Whatever the problem, it can be explained, and the figures of the explanation fit together."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeloom import Objective, Placement, Problem, Profile, Schedule, StageProfile, explain
from pipeloom.ir import timed
from pipeloom.solver import lower_bound, one_at_a_time
from tests.support.random_problems import linear_problems, stage_profiles

NO_RELAXATIONS = ("the same work on every rank", "twice the microbatches")


def assert_explained(problem: Problem) -> None:
    found = explain(timed(Schedule(problem, one_at_a_time(problem))), seconds=0.0)
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["bound"]["words"]
    assert str(found).startswith("why no schedule is below")
    bound, cost = lower_bound(problem).value, found.now.cost
    assert cost is not None
    assert found.reason.value == pytest.approx(bound)
    for loss in found.losses:
        parts = (loss.work, loss.head, loss.between, loss.tail, loss.spare)
        assert sum(parts) == pytest.approx(cost, abs=1e-9)
        assert min(parts) >= -1e-9 * cost
    for change in found.changes:
        assert change.bound <= bound * (1 + 1e-9) or change.what in NO_RELAXATIONS
    if found.enough is not None:
        assert found.enough.bound <= bound * (1 + 1e-9)


@settings(max_examples=15)
@given(data=st.data())
def test_every_chain_is_explained(data: st.DataObject) -> None:
    ranks, microbatches = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 9))
    assert_explained(data.draw(linear_problems(ranks, microbatches)))


@settings(max_examples=8)
@given(
    stages=st.lists(stage_profiles(), min_size=4, max_size=4),
    microbatches=st.integers(1, 5),
    t_comm=st.sampled_from([0.0, 0.3, 40.0]),
    objective=st.sampled_from(Objective),
)
def test_several_stages_a_rank_are_explained(
    stages: list[StageProfile], microbatches: int, t_comm: float, objective: Objective
) -> None:
    limit = tuple(stages[r].m_b + stages[r + 2].m_b for r in range(2))
    placement = Placement.interleaved(2, 2)
    profile = Profile(tuple(stages), 2, t_comm)
    assert_explained(Problem(profile, microbatches, placement, limit, objective))
