"""Windows of the best order, put in order anew by CP-SAT."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.gaps.instances import problem_of
from pipeloom.solver.bounds import lower_bound
from pipeloom.solver.construct.one_at_a_time import one_at_a_time
from pipeloom.solver.core.incumbent import Incumbent
from pipeloom.solver.core.options import SolveOptions
from pipeloom.solver.search.window_search import WindowSearch


@pytest.mark.parametrize("kind", ["two copies", "makespan"])
def test_windows_make_schedules_better_and_prove_nothing(kind: str) -> None:
    problem = problem_of(kind, 0, 17)
    best = Incumbent(problem, lower_bound(problem), SolveOptions(work_limit=100_000))
    best.offer(one_at_a_time(problem), "one-at-a-time")
    worst, bound = best.cost, best.bound
    search = WindowSearch(best, np.random.default_rng(0))
    for _ in range(3):
        search.round(best)
    assert best.cost < worst
    assert best.bound is bound
    schedule = best.schedule("auto", 0)
    assert schedule.timing is not None
    limit = np.array(problem.memory_limit) * (1 + 1e-9)
    assert (np.array(schedule.timing.peak_memory) <= limit).all()
