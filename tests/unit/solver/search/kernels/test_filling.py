"""Orders of F's and B's whose W's fill the time between them."""

from __future__ import annotations

import numpy as np
import pytest

from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.solver.bounds import lower_bound
from pipeloom.solver.construct.one_at_a_time import one_at_a_time
from pipeloom.solver.core.incumbent import Incumbent
from pipeloom.solver.core.options import SolveOptions
from pipeloom.solver.search.local_search import FillingAnnealer

STAGE = StageProfile(1.0, 1.0, 1.0, 1.0, 0.5)


@pytest.mark.parametrize("objective", Objective)
def test_annealing_finds_what_memory_allows(objective: Objective) -> None:
    """Of a V in half of what it needs; the orders keep the memory, and cost what is said."""
    profile = Profile((STAGE,) * 6, 3, 0.1)
    problem = Problem(profile, 6, Placement.v(3), (3.0,) * 3, objective)
    best = Incumbent(problem, lower_bound(problem), SolveOptions(time_limit=60))
    best.offer(one_at_a_time(problem), "one-at-a-time")
    worst = best.cost
    annealer = FillingAnnealer(problem, np.random.default_rng(0))
    annealer.round(best)
    assert best.bound.value <= best.cost * (1 + 1e-9)
    assert best.cost < 0.8 * worst
    schedule = best.schedule("heuristic", 0)
    assert schedule.known_timing.cost(objective) == pytest.approx(best.cost)
    assert max(schedule.known_timing.peak_memory) <= 3.0
