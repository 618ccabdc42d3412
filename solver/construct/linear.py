"""The rounds (:mod:`.round_based`) on a problem, and the parameters to try with them.

They need the *warm-up*: how many microbatches each stage takes in before its first B. The head-tail
bound gives the best warm-up for a target cost: the fewest F's with which every first B can come in
time (:func:`..bounds.moments.fewest_forwards`). With fewer the cost is exceeded; more only hold
memory.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pipeloom.ir.cost.simulator import Simulator
from pipeloom.ir.model.ops import IntArray
from pipeloom.ir.model.problem import Problem

from ..bounds.moments import fewest_forwards
from ..core.linear_instance import LinearInstance
from ..core.options import Order
from .round_based import RoundParameters, round_parameters, round_schedule

EXCESS = (1e-9, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2)  # costs to warm up for, relative to the bound
SLOPES = (2.0, 1.0, 0.7, 1.5, 3.0, 2.5)  # F's in a warm-up more than on the next stage
SHARES = (1.0, 0.9, 1.1, 0.75, 1.25)  # further slopes; 1: just fills stage 0's memory


class Constructor:
    """Runs the rounds on a problem with one stage per rank; it allocates its arrays once."""

    def __init__(self, problem: Problem, linear: LinearInstance) -> None:
        self.linear = linear
        self._ranks = problem.ranks
        lengths = np.zeros(problem.ranks, dtype=np.int64)
        lengths[linear.ranks] = 3 * linear.microbatches
        self._simulator = Simulator(problem, np.append(0, np.cumsum(lengths)))
        self._f_end = np.empty((linear.stages, linear.microbatches))
        self._b_end = np.empty_like(self._f_end)

    def build(self, parameters: RoundParameters) -> Order | None:
        """The packed ops of each rank, one array per rank; None if the rounds get stuck."""
        c = self.linear
        order = np.empty((c.stages, 3 * c.microbatches), dtype=np.int64)
        complete = round_schedule(c, parameters, order, self._f_end, self._b_end)
        if not complete:
            return None
        rows = [np.empty(0, dtype=np.int64)] * self._ranks
        for stage, rank in enumerate(c.ranks.tolist()):
            rows[rank] = order[stage]
        return tuple(rows)

    def cost(self, rows: Order) -> float:
        return self._simulator.cost(np.concatenate(rows))


def settings(problem: Problem, linear: LinearInstance, bound: float) -> Iterator[RoundParameters]:
    """The parameters to try; those that the bound suggests come first."""
    warms = fewest_forwards(problem, linear, [bound * (1 + excess) for excess in EXCESS])
    full = (float(linear.capacity[0]) - 1) / max(1, linear.stages - 1)
    warms += [_slope(linear, slope) for slope in SLOPES]
    further = [_slope(linear, full * share) for share in SHARES]
    idle = bound - linear.lags(problem.objective) - linear.work
    distinct = {warm.tobytes(): warm for warm in warms + further}
    return round_parameters(linear, list(distinct.values()), idle)


def _slope(linear: LinearInstance, slope: float) -> IntArray:
    later = np.arange(linear.stages)[::-1]
    return np.asarray(np.minimum(linear.capacity, np.floor(1 + slope * later).astype(np.int64)))
