"""The oracle's reductions and its limit; other tests compare solvers and bounds with it."""

from __future__ import annotations

import math

import pytest

from pipeloom.ir import Problem, Profile, StageProfile
from tests.support.oracle import Searched, TooManyOrdersError, exhaustive_optimum, searched


def test_the_period_may_gain_from_another_first_microbatch() -> None:
    """Rank 1 starts with microbatch 1, hence later, so that it waits less for its first B."""
    stages = (StageProfile(10, 1, 1), StageProfile(6, 13, 11), StageProfile(10, 3, 0))
    problem = Problem.linear(Profile(stages, 3, 0.0), 3)
    assert exhaustive_optimum(problem) < exhaustive_optimum(problem, canonical=True)


def test_a_search_that_is_cut_off_says_so() -> None:
    problem = Problem.linear(Profile((StageProfile(1, 1, 1),) * 3, 3, 0.5), 3, 2.0)
    assert searched(problem, nodes=20) == Searched(math.inf, False)
    with pytest.raises(TooManyOrdersError):
        exhaustive_optimum(problem, nodes=20)
    assert searched(problem).complete
