"""Bisection for the shortest interval at which a periodic V schedule fits in memory."""

from __future__ import annotations

import numpy as np

from pipeloom.ir.model.ops import FloatArray
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Problem

from ..construct.periodic_v import PeriodicV, periodic_order
from ..core.incumbent import Incumbent
from ..core.methods import Method
from ..core.tolerances import ROUNDING
from ..core.worker_threads import Pieces

MANY = 8  # least number of microbatches per rank: with fewer, the ends of a schedule dominate
ENDS = 0.5  # least length of warm-up and cool-down, in intervals per rank
TRIES = 8  # updates of the memory weights for each interval
NEAR = 0.002  # the bisection ends when the interval is known to this relative precision
FIRM = 6.0  # step of the update: added to log(weight) per relative excess of memory
TINY = 1e-300
# work in simulated ops: of an op in the order built, of a pair of cycles compared
BUILD_OP, PAIR = 10, 15


def search_periodic(best: Incumbent) -> Pieces:
    """Bisection over the interval; offers every schedule that keeps the memory limits.

    It is between the least one, which is the work, and the one with the cost of the best schedule.
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
            # Lagrangian bound: with these weights no cycles fit on average
            beyond = v.held(starts)[limited] - interval * limit[limited]
            if found or float(weights[limited] @ beyond) > 0:
                break
            weights = _shares(weights * np.exp(FIRM * over))
        least, most = (least, interval) if found else (interval, most)


def repeats(problem: Problem) -> bool:
    """Whether the problem is a V with memory limits and enough equal microbatches."""
    return (
        problem.limited
        and problem.placement == Placement.v(problem.ranks)
        and not problem.profile.unlike
        and problem.microbatches >= MANY * problem.ranks
    )


def _shares(weights: FloatArray) -> FloatArray:
    """The weights divided by their sum."""
    return np.asarray(weights / weights.sum())


def _offer(best: Incumbent, starts: FloatArray, interval: float) -> None:
    problem = best.problem
    best.work.spend(BUILD_OP * 3 * problem.stages * problem.microbatches)
    best.offer(periodic_order(starts, interval, problem.microbatches), Method.PERIODIC)
