"""Where weights travel no bound is above what the best of all owners, routes and orders come to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeloom.ir.cost.simulator import timed
from pipeloom.ir.formats import dump_schedule
from pipeloom.ir.model.ops import parse_order
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.profile import Link, Links, Profile, Sharing, StageProfile
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.verify.certificates.arrivals import arrivals
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.ir.verify.schedule_facts import read_facts
from pipeloom.report.summaries import scope
from pipeloom.solver.bounds import lower_bound
from pipeloom.solver.bounds.general import busy
from pipeloom.solver.bounds.weight_arrival import weight_arrivals
from pipeloom.solver.optimize import optimize
from tests.support.weight_oracle import least_makespan

TIMES = st.sampled_from([0.0, 0.1, 1.0, 1.7, 3.0])
EXACT = pytest.approx


def make(
    stages: list[StageProfile],
    ranks: int,
    microbatches: int,
    links: Links | None,
    t_comm: float = 0.0,
    limit: float | None = None,
) -> Problem:
    profile = Profile(tuple(stages), ranks, t_comm=t_comm, links=links, shared_by=1)
    placement = Placement.round_robin(ranks)
    return Problem(profile, microbatches, placement, profile.limit_from(limit), Objective.MAKESPAN)


@st.composite
def tiny(draw: st.DrawFn) -> Problem:
    ranks, most = draw(st.sampled_from([(2, 3), (3, 2), (4, 1)]))
    number = draw(st.integers(1, most))
    stages = [
        StageProfile(*draw(st.tuples(TIMES, TIMES, TIMES, TIMES)), weight_bytes=1e6 * draw(TIMES))
        for _ in range(number)
    ]
    link = st.builds(Link, TIMES, st.sampled_from([0.5, 1.0]))
    pairs = [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
    group = st.lists(st.sampled_from(pairs), unique=True, min_size=1).map(tuple)
    shared = st.sampled_from(Sharing) | st.lists(group, max_size=2).map(tuple)
    special = st.lists(st.tuples(st.just(0), st.just(1), link), max_size=1).map(tuple)
    links = draw(st.none() | st.builds(Links, link, special, shared))
    one = sum(stage.m_b for stage in stages)
    limit = draw(st.none() | st.sampled_from([1.0, 1.3, 1.6]).map(lambda share: share * one))
    return make(stages, ranks, ranks + draw(st.integers(0, 2)), links, draw(TIMES), limit)


@given(tiny())
def test_bounds_hold_and_nothing_found_beats_the_optimum(problem: Problem) -> None:
    least = least_makespan(problem)
    assert lower_bound(problem).value <= least * (1 + 1e-9)
    found = optimize(problem, work_limit=0.5)
    assert found.known_timing.makespan >= least * (1 - 1e-9)
    proven = float(arrivals(read_facts(dump_schedule(found), "schedule")))
    assert proven == EXACT(weight_arrivals(problem).value, rel=1e-8)


def unit(number: int) -> list[StageProfile]:
    return [StageProfile(1.0, 1.0, 1.0, weight_bytes=0.5e6)] * number


@pytest.mark.parametrize(
    ("links", "least"),
    [
        (Links(Link(0.5, 1e9)), 0.5),  # distance: each rank straight from the owner
        (Links(Link(0.5, 1e9), shared=Sharing.RING), 1.0),  # distance: half round
        (Links(Link(0.0, 1.0), shared=Sharing.PORTS), 1.0),  # spread: one, then two more
    ],
)
def test_each_argument_is_met_where_it_binds(links: Links, least: float) -> None:
    problem = make(unit(1), 4, 4, links)
    assert weight_arrivals(problem).value == EXACT(3.0 + least)
    assert least_makespan(problem) == EXACT(3.0 + least)


def test_receiving_binds_where_weights_are_heavy() -> None:
    """Each of two ranks receives what the other owns: of stages that take 8 each, 4 at best."""
    links = Links(Link(0.0, 1.0), shared=Sharing.PORTS)
    stages = [StageProfile(1.0, 1.0, 1.0, weight_bytes=8e6)] * 4
    problem = make(stages, 2, 2, links)
    assert weight_arrivals(problem).value == EXACT(4 * 8.0 / 2 + 12 - 3)
    assert least_makespan(problem) >= weight_arrivals(problem).value


def test_memory_leaves_little_to_run_before_the_last_stage_comes() -> None:
    """Two of four stages that take 8 each come by 16; by then F's can have filled a memory of four
    of them."""
    links = Links(Link(0.0, 1.0), shared=Sharing.PORTS)
    stages = [StageProfile(1.0, 1.0, 1.0, weight_bytes=8e6)] * 4
    problem = make(stages, 2, 4, links, limit=4.0)
    assert weight_arrivals(problem).value == EXACT(16.0 + 24 - 4)
    assert weight_arrivals(make(stages, 2, 4, links)).value == EXACT(16.0 + 24 - 6)


def test_replicated_stages_wait_for_nothing_and_are_no_such_instance() -> None:
    """Why the bound is said to cover schedules in which each stage has one owner."""
    problem = make(unit(2), 2, 2, Links(Link(0.5, 1e9)))
    order = ["0F0 1F0 1BW0 0BW0", "0F1 1F1 1BW1 0BW1"]
    replicated = timed(Schedule.of(problem, list(map(parse_order, order)), "by hand"))
    assert verify_schedule(dump_schedule(replicated)) == []
    assert replicated.known_timing.makespan == 6.0 < weight_arrivals(problem).value
    assert "each stage on one owner" in scope(problem)


def test_where_a_rank_has_no_work_it_may_own_the_first_stage() -> None:
    problem = make(unit(1), 4, 3, None, t_comm=0.5)
    assert weight_arrivals(problem).value == 0.0
    assert lower_bound(problem).value == busy(problem).max() == 3.0
