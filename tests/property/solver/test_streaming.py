"""Whatever the order and the plan: what streaming makes verifies, compiles and counts right."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeloom.ir.errors import InvalidScheduleError
from pipeloom.ir.formats import dump_schedule
from pipeloom.ir.model.ops import pack
from pipeloom.ir.model.placement import Passing, Placement
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Link, Links, Profile, Sharing, StageProfile
from pipeloom.ir.model.program import TensorKind
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.solver.weight_passing.streaming import Route, Streaming, streamed
from tests.support.random_schedules import random_order
from tests.support.weight_machine import run_compiled

TIMES = st.sampled_from([0.0, 0.1, 1.0, 1.7, 3.0])
SEEDS = st.integers(0, 2**32)
LINKS = st.builds(Links, st.builds(Link, TIMES, st.just(1e-5)), shared=st.sampled_from(Sharing))
PLANS = st.builds(
    Streaming,
    buffers=st.integers(1, 4),
    route=st.sampled_from(Route),
    collections=st.integers(1, 3),
    lead=st.integers(0, 2),
    home=st.none() | st.sampled_from(Route),
    opening=st.integers(0, 2),
)


@st.composite
def problems(draw: st.DrawFn, passing: Passing = Passing.WEIGHTS) -> Problem:
    ranks, number, microbatches = (draw(st.integers(1, most)) for most in (4, 5, 7))
    stages = tuple(
        StageProfile(
            *draw(st.tuples(TIMES, TIMES, TIMES)),
            weight_bytes=draw(TIMES) * 10,
            grad_bytes=draw(TIMES) * 10,
        )
        for _ in range(number)
    )
    t_comm, links = draw(TIMES), draw(st.none() | LINKS)
    profile = Profile(stages, ranks, t_comm, links, shared_by=1)
    placement = Placement.round_robin(ranks)
    if passing is Passing.MIXED:
        pairs = number * microbatches
        owners = draw(st.lists(st.integers(0, ranks - 1), min_size=pairs, max_size=pairs))
        placement = Placement.of_ops(
            Passing.MIXED, ranks, np.reshape(owners, (number, microbatches))
        )
    return Problem(profile, microbatches, placement, profile.limit_from(None))


def planned(problem: Problem, plan: Streaming, seed: int) -> Schedule | None:
    """Of a random order; None where a path cannot serve it, which direct routes always can."""
    rows = [pack(row) for row in random_order(problem, 0.5, Random(seed))]
    try:
        return streamed(problem, rows, plan)
    except InvalidScheduleError:
        assert {plan.route, plan.home or plan.route} != {Route.DIRECT} or plan.opening
        return None


@pytest.mark.parametrize("passing", [Passing.WEIGHTS, Passing.MIXED])
@given(st.data(), PLANS, SEEDS)
def test_any_order_is_served(
    passing: Passing, data: st.DataObject, plan: Streaming, seed: int
) -> None:
    schedule = planned(data.draw(problems(passing)), plan, seed)
    assert schedule is None or verify_schedule(dump_schedule(schedule)) == []


@given(problems(), PLANS, SEEDS)
def test_its_program_collects_every_gradient_once(
    problem: Problem, plan: Streaming, seed: int
) -> None:
    schedule = planned(problem, plan, seed)
    if schedule is None:
        return
    machine = run_compiled(schedule, seed)
    if plan.route is Route.DIRECT:
        for row in machine.program.buffers:
            assert sum(b.kind is TensorKind.WEIGHT for b in row) <= plan.buffers
