"""No bound by what a rank can have run by when is above the cost of the best of all orders."""

from __future__ import annotations

from itertools import cycle

import pytest

from benchmarks.gaps.instances import problem_of as gap_problem
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.solver.bounds import PLACED, lower_bound
from pipeloom.solver.bounds.several_stages.general_placement import GeneralPlacement
from pipeloom.solver.bounds.several_stages.rank_flow import flow_bound
from pipeloom.solver.core.stopping import Budget
from tests.property.small_exact.instances import problem_of
from tests.support.oracle import known_optimum

KINDS = ("v", "several stages a rank")
STEPS = 24
EQUAL = 1e-7


def checked(first: int, number: int) -> int:
    """How many of so many small problems were held against their optimum, closed forms too."""
    decided = 0
    for seed, kind in zip(range(first, first + number), cycle(KINDS), strict=False):
        problem = problem_of(kind, seed)
        best = known_optimum(problem, nodes=100_000)
        if not best:
            continue
        decided += 1
        placed = GeneralPlacement.of(problem)
        values = [bound(placed).value for bound in PLACED]
        for ceiling in (best, 2.5 * best):
            values.append(flow_bound(problem, 0.0, ceiling, Budget(20.0), STEPS).value)
        assert max(values) <= best * (1 + EQUAL), (kind, seed)
    return decided


def test_bounds_hold() -> None:
    assert checked(0, 12) > 8


@pytest.mark.slow
def test_bounds_hold_for_thousands() -> None:
    assert checked(0, 3600) > 2500


def test_interleaved_stages_at_half_of_the_memory_are_bounded_above_the_closed_forms() -> None:
    """Instance 8 of ``benchmarks/gaps``, whose best known schedule costs 4027."""
    problem = gap_problem("interleaved", 8, 17)
    closed = lower_bound(problem).value
    found = flow_bound(problem, closed, 4028.0, Budget(60.0), 250)
    assert closed < 3400.0 < 3450.0 < found.value < 4027.0
    assert found.name == "rank-flow"


def test_nothing_is_found_below_what_is_known() -> None:
    profile = Profile((StageProfile(1.0, 1.0, 1.0, 1.0, 1.0),) * 4, 2)
    problem = Problem(profile, 4, Placement.v(2), (4.0,) * 2)
    assert flow_bound(problem, 40.0, 45.0, Budget(20.0), STEPS).value <= 40.0


def test_what_is_no_more_than_known_is_explained_too() -> None:
    """What more memory buys was asked for up to what was found, a program of no time."""
    stages = (StageProfile(1.0, 0.0, 0.0), *(StageProfile(1.0, 1.0, 0.0),) * 2)
    placement = Placement.of_stages((0, 1, 1))
    problem = Problem(Profile(stages, 2), 2, placement, (2.0,) * 2, Objective.MAKESPAN)
    found = flow_bound(problem, 20.0, 20.0, Budget(20.0), STEPS)
    assert found.rank == 1
    assert "spans at least" in found.explained()[0]


def test_staged_heads_count_what_passes_higher_stages() -> None:
    """Until its first B of stage 0, 15 ms after its F, a rank with room for two chunks of a V of
    four ranks may run that F and all of its stage 7, and then one more F: it idles for 10."""
    profile = Profile((StageProfile(1.0, 1.0, 1.0, 1.0, 0.0),) * 8, 4)
    problem = Problem(profile, 8, Placement.v(4), (2.0,) * 4)
    placed = GeneralPlacement.of(problem)
    assert placed.hosts[0].before_first_backward(0) == 1.0 + 3.0 + 1.0
    assert placed.turn(0, 0) == 15.0
    assert placed.head(placed.hosts[0], 0) == 15.0 - 5.0
    assert placed.head(placed.hosts[0], 1) == 8.0 - 2.0
