"""Bounds and optima on the rows of the zero bubble paper's table 5."""

from __future__ import annotations

import pytest

from pipeloom.ir import Objective, Problem, Status
from pipeloom.solver import lower_bound, solve
from tests.support.table5 import ROWS

# the bound's bubble rate at each model's smallest M, by the limit in units of P x M_B
BOUNDS = """
      1     1.25  1.5   1.75  2     2.5
1.5B  .1585 .0951 .0524 .0433 .0433 .0433
6.2B  .1323 .0751 .0475 .0182 .0012 .0005
14.6B .1397 .0837 .0571 .0289 .0031 .0004
28.3B .1421 .0867 .0604 .0326 .0033 .0002
"""


def bubble_rate(problem: Problem, cost: float) -> float:
    stages = problem.profile.stages
    work = problem.microbatches * sum(s.t_f + s.t_b + s.t_w for s in stages)
    return round(1 - work / (problem.ranks * cost), 4)


@pytest.mark.parametrize("line", BOUNDS.strip().splitlines()[1:], ids=lambda line: line.split()[0])
def test_bounds_at_growing_limits(line: str) -> None:
    model, *rates = line.split()
    row = next(row for row in ROWS.values() if row.model == model)
    problems = [row.problem(float(share)) for share in BOUNDS.split()[:6]]
    found = [bubble_rate(p, lower_bound(p).value) for p in problems]
    assert found == list(map(float, rates))


@pytest.mark.parametrize("share", [1.5, 1.75, 2.5])
def test_the_frontier_is_proven_optimal(share: float) -> None:
    schedule = solve(ROWS["14.6B-48"].problem(share))
    assert schedule.known_report.status is Status.OPTIMAL


def test_the_makespan_differs_much_from_the_period() -> None:
    schedule = solve(ROWS["6.2B-24"].problem(2, Objective.MAKESPAN))
    assert schedule.known_report.status is Status.OPTIMAL
    assert bubble_rate(schedule.problem, schedule.known_timing.makespan) == 0.1003
