"""After a move the samples' times are those that timing the whole order gives."""

from __future__ import annotations

import numpy as np
import pytest

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.model.ops import FloatArray, IntArray, offsets_of
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.solver.core.kernels import CostArrays
from pipeloom.solver.core.stopping import Budget
from pipeloom.solver.families.registry import build_family
from pipeloom.solver.search.kernels.moves import shift
from pipeloom.solver.search.kernels.robust import measure_of, time_samples
from pipeloom.solver.search.robust_annealing import RobustAnnealer


def test_only_what_a_move_changes_is_timed_again() -> None:
    problem = Problem.linear(Profile((StageProfile(2.0, 3.0, 1.5),) * 4, 4, 0.1), 6)
    rows = build_family("zb-h1", problem.profile, 6).order
    offsets, order = offsets_of(rows), np.concatenate(rows).astype(np.int64)
    times = np.random.default_rng(0).uniform(1, 2, (3 * 4 * 6, 8))
    costs = CostArrays.of(Costs.of(problem))._replace(durations=times)

    def timed(end: FloatArray, low: int, high: int) -> tuple[bool, int]:
        made, changed = np.empty((2, len(end)), dtype=bool)
        found: IntArray = np.empty(len(end), dtype=np.int64)
        return time_samples(
            order, offsets, low, high, costs, end, made, changed, found, np.empty_like(end)
        )

    end = np.zeros_like(times)
    assert timed(end, 0, len(order) - 1) == (True, len(times))
    low, counts = int(offsets[3]) - 5, []
    for source, target in ((low, low + 2), (low - 9, low - 12), (low + 2, low)):
        shift(order, source, target)
        runs, count = timed(end, min(source, target), max(source, target))
        fresh = np.zeros_like(times)
        assert timed(fresh, 0, len(order) - 1)[0] == runs
        if runs:
            np.testing.assert_array_equal(end, fresh)
            counts.append(count)
    assert counts
    assert min(counts) < len(times)


def test_a_round_ends_where_the_caller_stops_it() -> None:
    problem = Problem.linear(Profile((StageProfile(2.0, 3.0, 1.5),) * 4, 4, 0.1), 6)
    rng = np.random.default_rng(0)
    annealer = RobustAnnealer(problem, rng.uniform(0.9, 1.1, (4, 4, 6, 8)), 0.0, rng)
    start, budget = build_family("1f1b", problem.profile, 6).order, Budget(ops=1e10)
    found = annealer.improve([start], budget, lambda: True)
    assert budget.interrupt()
    assert annealer.cost(found[0]) <= annealer.cost(start)


@pytest.mark.parametrize("share", [0.01, 0.5, 0.95])
def test_a_quantile_is_that_of_the_sorted_costs(share: float) -> None:
    rng = np.random.default_rng(0)
    for size in (1, 2, 64, 129):
        costs = rng.integers(0, 20, size).astype(float)  # some are equal
        assert measure_of(costs, 0.0) == pytest.approx(costs.mean())
        assert measure_of(costs, share) == np.sort(costs)[min(size - 1, int(share * size))]
