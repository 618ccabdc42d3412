"""Every exact backend meets the optimum over all orders, on small instances of every shape."""

from __future__ import annotations

import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeloom.ir.cost.simulator import timed
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule
from pipeloom.solver.construct.one_at_a_time import one_at_a_time
from pipeloom.solver.core.options import SolveOptions
from pipeloom.solver.exact import BACKENDS
from tests.support.oracle import exhaustive_optimum

TIME = st.one_of(st.sampled_from([0.0, 1.0, 3.0]), st.floats(0.1, 3.0))
LINEAR = ((0, 1), (0, 1, 2))
FOLDED = ((0, 0), (0, 1, 0), (0, 1, 1, 0), (0, 1, 0, 1), (1, 0, 1))


@st.composite
def stage_profiles(draw: st.DrawFn) -> StageProfile:
    m_b = draw(st.sampled_from([0.0, 1.0, 1.0, 1.3]))
    m_w = m_b * draw(st.sampled_from([0.0, 0.5, 0.94, 1.0]))
    return StageProfile(draw(TIME), draw(TIME), draw(TIME), m_b, m_w)


@st.composite
def problems(draw: st.DrawFn, placements: tuple[tuple[int, ...], ...], most: int) -> Problem:
    owners = draw(st.sampled_from(placements))
    ranks = 1 + max(owners)
    stages = tuple(draw(stage_profiles()) for _ in owners)
    delay = st.sampled_from([0.0, 0.1, 0.7, 50.0])
    matrix = tuple(tuple(draw(delay) for _ in range(ranks)) for _ in range(ranks))
    limit = st.sampled_from([0.9, 1.0, 1.94, 2.0, 2.5, math.inf])
    return Problem(
        Profile(stages, ranks, draw(st.one_of(delay, st.just(matrix)))),
        draw(st.integers(1, most)),
        Placement.of_stages(owners),
        tuple(draw(limit) for _ in range(ranks)),
        draw(st.sampled_from(Objective)),
    )


def check(name: str, problem: Problem, warm: bool) -> None:
    """``warm``: from a poor schedule; else from none."""
    optimum = exhaustive_optimum(problem)
    incumbent = None
    if warm and math.isfinite(optimum):
        incumbent = timed(Schedule(problem, one_at_a_time(problem)))
    result = BACKENDS[name](
        problem, SolveOptions(time_limit=60.0, seed=1), incumbent=incumbent, lower_bound=0.0
    )
    if math.isinf(optimum):
        assert result.schedule is None
        assert result.lower_bound == math.inf
        return
    assert result.schedule is not None
    assert result.schedule.known_timing.cost(problem.objective) == pytest.approx(optimum, rel=1e-6)
    assert result.lower_bound == pytest.approx(optimum, rel=1e-6)
    assert result.lower_bound <= optimum * (1 + 1e-9)


SETTINGS = settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.data_too_large]
)


@pytest.mark.parametrize("name", BACKENDS)
@SETTINGS
@given(problem=problems(LINEAR, most=3), warm=st.booleans())
def test_one_stage_a_rank(name: str, problem: Problem, warm: bool) -> None:
    check(name, problem, warm)


@pytest.mark.parametrize("name", BACKENDS)
@SETTINGS
@given(problem=problems(FOLDED, most=2), warm=st.booleans())
def test_several_stages_a_rank(name: str, problem: Problem, warm: bool) -> None:
    check(name, problem, warm)
