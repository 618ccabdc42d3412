"""How many sizes fit into memory."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.solver.bounds import lower_bounds
from pipeloom.solver.bounds.rank_model import filled
from pipeloom.solver.core.tolerances import ROUNDING, counts_within
from tests.support.oracle import exhaustive_optimum


@given(size=st.floats(1e-3, 1e12), number=st.integers(0, 3000))
def test_as_many_fit_as_their_sum_and_no_more(size: float, number: int) -> None:
    summed = sum([size] * number)  # rounded each time
    for limit in (summed, number * size):
        room = limit * (1 + ROUNDING)
        assert counts_within(room, size, 10_000) == number
        assert counts_within(filled(np.array([size]), room), size, 10_000) == number


def test_no_more_than_there_are_and_none_in_no_room() -> None:
    assert counts_within(math.inf, 2.0, 7) == 7
    assert counts_within(1.0, 0.0, 7) == 7
    assert counts_within(-1.0, 2.0, 7) == 0


def test_what_is_left_of_a_limit_keeps_its_slack() -> None:
    """All but .1 of the limit is taken off, and with it was nearly all of its slack: no microbatch
    seemed to fit."""
    stage = StageProfile(1.0, 1.0, 1.0, 2.0, t_r=0.5, m_r=0.1)
    problem = Problem.linear(Profile((stage,) * 2, 2, 0.0), 2, 2.0 * (1 - 5e-10))
    optimum = exhaustive_optimum(problem)
    assert all(bound.value <= optimum * (1 + 1e-9) for bound in lower_bounds(problem))
