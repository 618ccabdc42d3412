"""Whatever the cluster: what is chosen is valid, the fastest of all, and no bound is above any of
them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeloom import (
    Objective,
    Problem,
    Profile,
    Schedule,
    StageProfile,
    dump_schedule,
    verify_schedule,
)
from pipeloom import solve as optimize
from pipeloom.planner.passing import reasons
from pipeloom.planner.passing.choose import certified
from tests.support.inner import Link, Links, Sharing, choose

TIMES = st.sampled_from([0.0, 0.3, 1.0, 2.0])
SIZES = st.sampled_from([0.0, 1e4, 1e6])


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    ranks = draw(st.integers(1, 6))
    stages = [
        StageProfile(*draw(st.tuples(TIMES, TIMES, TIMES)), 1.0, 0.5, draw(SIZES), draw(SIZES))
        for _ in range(draw(st.sampled_from([ranks, ranks + 1, max(1, ranks - 1)])))
    ]
    link = Link(draw(TIMES), draw(st.sampled_from([0.1, 1.0])))
    slow = Link(draw(TIMES), 0.01)
    pairs = ((0, ranks - 1, slow),) if ranks > 1 and draw(st.booleans()) else ()
    links = draw(st.sampled_from([None, *(Links(link, pairs, shared) for shared in Sharing)]))
    memory = draw(st.sampled_from([None, 1e6, 1e7]))
    t_comm = None if links else draw(TIMES)
    device = None if memory is None else (memory,) * ranks
    return Profile(tuple(stages), ranks, t_comm, links, device_memory=device, shared_by=1)


def search(problem: Problem, scheme: str, share: float) -> Schedule:
    return optimize(problem, solver="heuristic", work_limit=0.002)


@settings(max_examples=20)
@given(profiles(), st.integers(1, 7), st.sampled_from(Objective))
def test_the_choice(profile: Profile, microbatches: int, objective: Objective) -> None:
    choice = choose(profile, microbatches, objective=objective, search=search)
    assert reasons.text(choice)
    for row in choice.usable:
        document = dump_schedule(certified(row.schedule))
        assert verify_schedule(document) == []
        assert document["report"]["lower_bound"] is not None
    if choice.best is None:
        assert all(row.why_not for row in choice.rows)
        return
    assert choice.best.step_time == pytest.approx(
        min(row.step_time for row in choice.usable), rel=1e-8
    )
    assert choice.best.excess() is None
