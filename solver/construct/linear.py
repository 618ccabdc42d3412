"""Round-based construction (:mod:`.round_based`) for a problem, and the parameters to try.

The parameters include the *warm-up*: how many microbatches each stage takes in before its first B.
For a target cost, the head-tail bound gives the best warm-up: the fewest F's with which every first
B can run in time (:func:`..bounds.moments.fewest_forwards`). Fewer F's would exceed the cost; more
F's only hold memory.
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
from ..core.tolerances import ROUNDING
from .round_based import RoundParameters, round_parameters, round_schedule

EXCESS = (ROUNDING, 1e-4, 1e-3, 3e-3, 1e-2, 3e-2)  # target costs, as relative excess over the bound
SLOPES = (2.0, 1.0, 0.7, 1.5, 3.0, 2.5)  # how many more F's a warm-up has than the next stage's
SHARES = (1.0, 0.9, 1.1, 0.75, 1.25)  # further slopes, relative to the one that fills stage 0


class Constructor:
    """Round-based construction for a problem with one stage per rank.

    It allocates its arrays once, for many calls of :meth:`build`.
    """

    def __init__(self, problem: Problem, linear: LinearInstance) -> None:
        self.linear = linear
        self._ranks = problem.ranks
        lengths = np.zeros(problem.ranks, dtype=np.int64)
        lengths[linear.ranks] = 3 * linear.microbatches
        self._simulator = Simulator(problem, np.append(0, np.cumsum(lengths)))
        self._f_end = np.empty((linear.stages, linear.microbatches))
        self._b_end = np.empty_like(self._f_end)

    def build(self, parameters: RoundParameters) -> Order | None:
        """Return the order that ``parameters`` give, one array of packed ops per rank.

        Returns None if the rounds get stuck: an F does not fit in memory, or a B waits for an F
        that has not been placed.
        """
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
    """Return an iterator over the parameters to try, the most promising warm-ups first.

    These are the warm-ups with which the cost may be as low as ``bound``, a lower bound on the
    cost, or slightly higher.
    """
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
