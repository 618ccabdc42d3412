"""The moves of the local search, seen on short orders."""

from __future__ import annotations

import numpy as np

from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.solver.bounds import lower_bound
from pipeloom.solver.construct.one_at_a_time import one_at_a_time
from pipeloom.solver.core.incumbent import Incumbent
from pipeloom.solver.core.options import SolveOptions
from pipeloom.solver.search.local_search import Annealer


def test_annealing_turns_the_worst_order_into_a_good_one() -> None:
    stage = StageProfile(1.0, 1.0, 1.0, 1.0, 0.5)
    problem = Problem.linear(Profile((stage,) * 3, 3, 0.1), 6, 3.0)
    best = Incumbent(problem, lower_bound(problem), SolveOptions(time_limit=60))
    best.offer(one_at_a_time(problem), "one-at-a-time")
    worst = best.cost
    annealer = Annealer(problem, np.random.default_rng(0))
    for _ in range(3):
        annealer.round(best)
    assert best.bound.value <= best.cost * (1 + 1e-9)
    assert best.cost < 0.7 * worst
    schedule = best.schedule("heuristic", 0)
    assert max(schedule.known_timing.peak_memory) <= 3.0
