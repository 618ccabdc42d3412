"""What more memory and faster links buy."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from pipeloom import Placement, Problem, Profile, Schedule, StageProfile, explain
from pipeloom import solve as optimize
from pipeloom.ir import Costs
from pipeloom.planner.explain.sensitivity import (
    bubble,
    changes,
    enough_memory,
    faster_links,
    more_memory,
)
from pipeloom.solver import is_feasible
from tests.property.planner.test_explanation import NO_RELAXATIONS
from tests.support.inner import Link, Links, lower_bound, one_at_a_time
from tests.support.table5 import load_rows


def problem(share: float) -> Problem:
    row = next(row for row in load_rows() if str(row) == "6.2B-24")
    return Problem.linear(row.profile, row.microbatches, row.limit(share))


def test_memory_stops_paying_where_the_bound_stops_falling() -> None:
    tight = problem(1.0)
    enough = enough_memory(Schedule(tight, one_at_a_time(tight)))
    assert enough is not None
    at, before = (
        lower_bound(more_memory(tight, n)).value
        for n in (enough.microbatches, enough.microbatches - 1)
    )
    assert at == pytest.approx(enough.bound)
    assert before > enough.bound * (1 + 1e-6)
    assert max(more_memory(tight, enough.microbatches).memory_limit) == enough.limit


def test_without_a_limit_there_is_nothing_to_buy() -> None:
    schedule = optimize(problem(math.inf), time_limit=0.1)
    assert enough_memory(schedule) is None
    assert [each.what for each in changes(schedule, 0.0)] == [
        "links twice as fast",
        "links without delay",
        "twice the microbatches",
    ]


def test_a_change_costs_no_more_than_the_same_order_under_it() -> None:
    schedule = optimize(problem(1.0), time_limit=2.0)
    for change in changes(schedule, 0.05)[:-1]:
        assert change.cost is not None
        assert change.bound <= change.cost * (1 + 1e-9)
        assert change.cost <= schedule.known_timing.period
        assert change.bubble == pytest.approx(bubble(schedule.problem, change.cost))


def test_more_of_a_change_costs_no_more_and_what_gains_nothing_is_no_row() -> None:
    schedule = optimize(problem(1.0), time_limit=1.0)
    alone, everywhere, *_ = changes(schedule, 0.1)
    assert alone.what.endswith("alone")
    assert everywhere.cost is not None
    assert alone.cost is not None
    assert everywhere.cost <= alone.cost
    stages = (StageProfile(1.0, 1.0, 1.0),) * 2
    ample = optimize(Problem.linear(Profile(stages, 2, 0.5), 4, 100.0), time_limit=0.1)
    told = str(explain(ample, seconds=0.05))
    assert "no gain by one more microbatch's M_B on every rank" in told
    assert "is enough, " in told


def test_even_stages_and_more_microbatches_are_tried() -> None:
    stages = tuple(StageProfile(t, t, t) for t in (1.0, 1.0, 2.0, 1.0))
    uneven = optimize(Problem.linear(Profile(stages, 4, 0.1), 8, 8.0), time_limit=0.5)
    told = explain(uneven, seconds=0.1)
    even, more = told.changes[-2:]
    assert (even.what, more.what) == NO_RELAXATIONS
    assert even.gains(told.now)
    assert not more.gains(told.now)
    alike = Problem.linear(Profile(stages[:2], 2, 0.1), 2, 1.0)
    told = explain(optimize(alike, time_limit=0.2), seconds=0.1)
    assert told.changes[-1].gains(told.now)


def test_a_limit_is_enough_for_the_same_cost_and_a_lower_one_is_not() -> None:
    stages = tuple(StageProfile(t, t, t) for t in (1.0, 1.0, 1.0, 2.0))
    loose = optimize(Problem.linear(Profile(stages, 4, 0.1), 8, 8.0), time_limit=0.5)
    held = enough_memory(loose, 0.5)
    assert held is not None
    limits = held.least or 0.0, held.too_little or 0.0
    assert limits[1] < limits[0] <= max(loose.known_timing.peak_memory)
    enough, low = (replace(loose.problem, memory_limit=(x,) * 4) for x in limits)
    cost = loose.known_timing.period
    assert optimize(enough, time_limit=0.5).known_timing.period == pytest.approx(cost)
    assert not is_feasible(low) or lower_bound(low).value > cost


def test_whoever_stops_it_gets_bounds_alone() -> None:
    schedule = optimize(problem(1.0), time_limit=0.5)
    assert {change.cost for change in changes(schedule, 5.0, lambda: True)} == {None}


def test_beyond_some_size_nothing_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(changes.__globals__, "MOST_OPS", 100)
    schedule = optimize(problem(1.0), time_limit=0.1)
    assert changes(schedule) == []
    assert enough_memory(schedule) is None


def test_memory_for_one_rank_or_for_all() -> None:
    profile = Profile((StageProfile(1, 1, 1, 2.0), StageProfile(1, 1, 1, 3.0)) * 2, 2)
    two = Problem(profile, 4, Placement.interleaved(2, 2), (10.0, math.inf))
    assert more_memory(two, 2).memory_limit == (14.0, math.inf)
    assert more_memory(two, 1, rank=1).memory_limit == (10.0, math.inf)


def test_links_get_faster_however_they_are_given() -> None:
    stages = (StageProfile(1, 1, 1, activation_bytes=2e6),) * 2
    links = Links(Link(0.5, 1.0), ((0, 1, Link(1.0, 0.5)),))
    for profile in (
        Profile(stages, 2, 4.0),
        Profile(stages, 2, ((0.0, 4.0), (5.0, 0.0))),
        Profile(stages, 2, links=links),
    ):
        given = Problem.linear(profile, 2)
        before = Costs.of(given).into_f
        assert before.any()
        assert Costs.of(faster_links(given, 0.5)).into_f == pytest.approx(before / 2)
        assert not Costs.of(faster_links(given, 0.0)).into_f.any()
