"""The benchmark of gaps by kind."""

from __future__ import annotations

import pytest

from benchmarks.gaps.instances import KINDS, RANKS, problem_of
from pipeloom.solver.bounds.feasibility import check_feasible


@pytest.mark.parametrize("kind", KINDS)
def test_instances_have_schedules_and_the_seed_decides_them(kind: str) -> None:
    for number in range(len(RANKS)):
        problem = problem_of(kind, number, 17)
        check_feasible(problem)
        assert problem == problem_of(kind, number, 17)
        assert problem != problem_of(kind, number, 18)
