"""How many sizes fit into memory."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pipeloom.solver.bounds.rank_model import filled
from pipeloom.solver.core.tolerances import ROUNDING, counts_within


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
