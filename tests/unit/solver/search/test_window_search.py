"""Windows of the best order, put in order anew by CP-SAT."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.schedule import Schedule
from pipeloom.solver.bounds import lower_bound
from pipeloom.solver.construct.one_at_a_time import one_at_a_time
from pipeloom.solver.core.incumbent import Incumbent
from pipeloom.solver.core.options import SolveOptions
from pipeloom.solver.remat.portfolio import one_at_a_time_with_remat
from pipeloom.solver.search.window_search import WindowSearch
from tests.support.large_problems import large_problem


def _problems() -> dict[str, Problem]:
    copies, makespan = large_problem("two copies", 0), large_problem("makespan", 0)
    remat = large_problem("remat", 1)
    stages = remat.profile.stages
    fused = [replace(s, t_r=None, m_r=None, t_bw=0.9 * (s.t_b + s.t_w)) for s in stages]
    halves = [replace(s, t_r=0.4 * s.t_f, m_r=0.5 * s.m_b) for s in stages[:2]]
    two = Placement.of_stages((0, 1, 1, 0, 0, 1, 1, 0))
    period = replace(makespan, placement=two, memory_limit=(6.0,) * 4, objective=Objective.PERIOD)
    return {
        "two copies": copies,
        "makespan": makespan,
        "ranks without stages": period,
        "BW": replace(remat, profile=replace(remat.profile, stages=tuple(fused))),
        "halves": replace(remat, profile=replace(remat.profile, stages=(*halves, *stages[2:]))),
    }


@pytest.mark.parametrize("name", list(_problems()))
def test_windows_make_schedules_better_and_prove_nothing(name: str) -> None:
    problem = _problems()[name]
    best = Incumbent(problem, lower_bound(problem), SolveOptions(work_limit=100_000))
    best.offer(one_at_a_time(problem), "one-at-a-time")
    worst, bound = best.cost, best.bound
    search = WindowSearch(best, np.random.default_rng(0))
    for _ in range(12):
        search.round(best)
        if best.cost < worst:
            break
    assert best.cost < worst
    assert best.bound is bound
    schedule = best.schedule("auto", 0)
    limit = np.array(problem.memory_limit) * (1 + 1e-9)
    assert (np.array(schedule.known_timing.peak_memory) <= limit).all()


def test_schedules_that_offload_stay_as_they_are() -> None:
    problem = large_problem("offload", 1)
    order = one_at_a_time_with_remat(problem, every=False)
    cost = simulate(Schedule(problem, order)).cost(problem.objective)
    best = Incumbent(problem, lower_bound(problem), SolveOptions(work_limit=100_000))
    best.offer(order, "one-at-a-time", cost)
    WindowSearch(best, np.random.default_rng(0)).round(best)
    assert best.cost == cost
