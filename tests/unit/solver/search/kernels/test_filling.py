"""Orders of F's and B's whose W's fill the time between them."""

from __future__ import annotations

import numpy as np
import pytest

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.model.ops import format_order, pack, parse_order, unpack
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.solver.bounds import lower_bound
from pipeloom.solver.construct.one_at_a_time import one_at_a_time
from pipeloom.solver.core.incumbent import Incumbent
from pipeloom.solver.core.kernels import CostArrays
from pipeloom.solver.core.options import SolveOptions
from pipeloom.solver.search.kernels.filling import fill_weights
from pipeloom.solver.search.local_search import FillingAnnealer

STAGE = StageProfile(1.0, 1.0, 1.0, 1.0, 0.5)


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (2.0, "0F0 0F1 0B0 0W0 0B1 0W1 | 1F0 1B0 1F1 1B1 1W0 1W1"),
        (1.0, "0F0 0F1 0B0 0W0 0B1 0W1 | 1F0 1B0 1W0 1F1 1B1 1W1"),
        (0.9, None),
    ],
)
def test_weights_run_while_inputs_come_and_where_memory_is_short(
    limit: float, expected: str | None
) -> None:
    """Memory of rank 1 alone is short: F1 waits for W0 there, for ever where one does not fit::

    rank 0  F0 F1 .  B0 W0 B1 W1      memory for 2
    rank 1  .  F0 B0 F1 B1 W0 W1
    """
    problem = Problem(Profile((STAGE,) * 2, 2, 0.0), 2, Placement.linear(2), (2.0, limit))
    costs, ends = CostArrays.of(Costs.of(problem)), np.empty((2, 2, 2))
    runs = pack(parse_order("0F0 0F1 0B0 0B1 1F0 1B0 1F1 1B1"))
    order, source, start = np.empty(12, np.int64), np.empty(12, np.int64), np.empty((2, 12))
    fits = fill_weights(
        runs, np.array([0, 4, 8]), costs, np.full(2, 0.9), order, *start, source, *ends,
        np.empty(4, np.int64), np.empty((3, 2)), np.empty((4, 2), np.int64),
    )  # fmt: skip
    rows = [format_order(unpack(row)) for row in np.split(order, 2)] if fits else []
    assert (" | ".join(rows) or None) == expected


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
