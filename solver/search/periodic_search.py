"""Search for periodic V schedules: bisection for the shortest interval that fits in memory.

The interval is the time from one microbatch to the next (:mod:`..construct.periodic_v`).
"""

from __future__ import annotations

import numpy as np

from pipeloom.ir.model.ops import FloatArray
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Problem

from ..construct.periodic_v import PeriodicV, periodic_order
from ..core.incumbent import Incumbent
from ..core.methods import Method
from ..core.streams import number_of_ops
from ..core.tolerances import ROUNDING
from ..core.worker_threads import Pieces

MANY = 8  # minimum number of microbatches per rank; with fewer, warm-up and cool-down dominate
ENDS = 0.5  # minimum length of warm-up and cool-down together, in intervals per rank
TRIES = 8  # maximum number of updates of the ranks' memory weights per interval
NEAR = 0.002  # the bisection ends when the interval is known to this relative precision
FIRM = 6.0  # step size: an update adds this times the relative excess of memory to log(weight)
TINY = 1e-300
# work in simulated ops: per op of a built order, and per pair of cycles compared
BUILD_OP, PAIR = 10, 15


def search_periodic(best: Incumbent) -> Pieces:
    """Search for the shortest interval by bisection, and offer every schedule that fits in memory.

    The interval is the time from one microbatch to the next. The search begins between two limits:
    the work of the busiest rank per microbatch, and the longest interval that can still beat the
    cost of ``best``. Yields after each schedule tried, so that the search can be paused. Does
    nothing if :func:`repeats` returns False.
    """
    problem = best.problem
    if not repeats(problem):
        return
    v, limit = PeriodicV.of(problem), np.array(problem.memory_limit)
    limited = np.isfinite(limit)
    weights = _shares(limited / np.where(limited & (limit > 0), limit, 1.0))
    least, most = v.work, best.cost / (problem.microbatches + ENDS * problem.ranks)
    while 0 < least < (1 - NEAR) * most:
        interval = float((least * most) ** 0.5)
        found = False
        for _ in range(TRIES):
            starts, pairs = v.starts(interval, weights)
            best.work.spend(PAIR * pairs)
            over = v.peaks(starts, interval) / np.maximum(limit, TINY) - 1 - ROUNDING
            found = bool(over.max() <= 0)
            if found:
                _offer(best, starts, interval)
            yield
            # Lagrangian bound: a positive weighted excess proves that nothing fits at this interval
            beyond = v.held(starts)[limited] - interval * limit[limited]
            if found or float(weights[limited] @ beyond) > 0:
                break
            weights = _shares(weights * np.exp(FIRM * over))
        least, most = (least, interval) if found else (interval, most)


def repeats(problem: Problem) -> bool:
    """Return whether :func:`search_periodic` applies to the problem.

    It applies if the stages form a V, some rank has a memory limit, all microbatches are equal, and
    there are at least :data:`MANY` times as many microbatches as ranks.
    """
    return (
        problem.limited
        and problem.placement == Placement.v(problem.ranks)
        and not problem.profile.unlike
        and problem.microbatches >= MANY * problem.ranks
    )


def _shares(weights: FloatArray) -> FloatArray:
    """Return the weights divided by their sum."""
    return np.asarray(weights / weights.sum())


def _offer(best: Incumbent, starts: FloatArray, interval: float) -> None:
    problem = best.problem
    best.work.spend(BUILD_OP * number_of_ops(problem))
    best.offer(periodic_order(starts, interval, problem.microbatches), Method.PERIODIC)
