import math

import pytest

from pipeloom.ir.errors import InfeasibleError
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.solver.bounds import lower_bound
from pipeloom.solver.bounds.feasibility import check_feasible, smallest_limit
from pipeloom.solver.optimize import optimize


def problem(*sizes: float, limit: float = math.inf) -> Problem:
    stages = tuple(StageProfile(1, 1, 1, size, size / 2) for size in sizes)
    return Problem.linear(Profile(stages, len(stages)), 3, limit)


def test_the_smallest_limit_is_the_largest_microbatch() -> None:
    assert smallest_limit(problem(1.0, 4.0, 2.0)) == (4.0, 1)
    check_feasible(problem(1.0, 4.0, 2.0, limit=4.0))


def test_a_rank_holds_a_microbatch_on_all_its_stages_at_once() -> None:
    stages = tuple(StageProfile(1, 1, 1, size) for size in (1.0, 2.0, 4.0, 8.0))
    profile = Profile(stages, 2)
    for placement, expected in (
        (Placement.interleaved(2, 2), (10.0, 1)),
        (Placement.of_stages((0, 1, 1, 0)), (9.0, 0)),
        (Placement.round_robin(2), (15.0, 0)),
    ):
        assert smallest_limit(Problem(profile, 3, placement, (math.inf,) * 2)) == expected


def test_an_infeasible_limit_names_the_rank_and_the_smallest_feasible_one() -> None:
    with pytest.raises(InfeasibleError):
        lower_bound(problem(1.0, 4.0, 2.0, limit=3.5))
    with pytest.raises(InfeasibleError) as caught:
        optimize(problem(1.0, 4.0, 2.0, limit=3.5))
    assert (caught.value.smallest, caught.value.rank) == (4.0, 1)
    assert str(caught.value) == (
        "memory limit 3.5 is too small for rank 1: one microbatch holds 4 there; "
        "the smallest feasible limit is 4"
    )
    with pytest.raises(InfeasibleError, match=r"limit is 4 GB; did you mean 24GB\?$"):
        optimize(problem(1e9, 4e9, 2e9, limit=24))
