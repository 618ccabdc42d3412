"""A time limit does not count the compiling of kernels."""

from __future__ import annotations

from time import monotonic

import numba

from pipeloom.ir.kernels import seconds_compiling
from pipeloom.solver.core.stopping import TimeLimit


def test_compiling_takes_nothing_of_a_time_limit() -> None:
    def looped(n: int) -> int:
        total = 0
        for i in range(n):
            total += i * n
        return total

    began, limit, before = monotonic(), TimeLimit(60.0), seconds_compiling()
    assert numba.njit(looped)(3) == 9
    compiled, left = seconds_compiling() - before, limit.left
    assert compiled > 0.0
    assert left >= 60.0 - (monotonic() - began) + compiled
    assert left <= 60.0
    assert seconds_compiling() == before + compiled
