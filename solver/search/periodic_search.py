"""The shortest interval between microbatches at which a V that repeats keeps its memory limits."""

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

MANY = 8  # microbatches for each rank from which on few are in a warm-up or a cool-down
ENDS = 0.5  # intervals for each rank that a warm-up and a cool-down take at least
TRIES = 8  # weights of memory for each interval
NEAR = 0.002  # of the interval: as near to one that is too short the search ends
FIRM = 6.0  # what a share of its limit that a rank holds too much adds to the log of its weight
TINY = 1e-300
BUILD_OP, PAIR = 10, 15  # simulated ops that an op put in order counts, and a pair of cycles


def search_periodic(best: Incumbent) -> Pieces:
    """Halves what is left between the least interval and one that would cost more than the best
    schedule there is. Offers whatever keeps the limits."""
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
            # too much on average, with these weights: no cycles hold less
            beyond = v.held(starts)[limited] - interval * limit[limited]
            if found or float(weights[limited] @ beyond) > 0:
                break
            weights = _shares(weights * np.exp(FIRM * over))
        least, most = (least, interval) if found else (interval, most)


def repeats(problem: Problem) -> bool:
    """Whether the problem is a V of so many microbatches, all alike, that repeating one pays."""
    return (
        problem.limited
        and problem.placement == Placement.v(problem.ranks)
        and not problem.profile.unlike
        and problem.microbatches >= MANY * problem.ranks
    )


def _shares(weights: FloatArray) -> FloatArray:
    """Weights whose sum is 1."""
    return np.asarray(weights / weights.sum())


def _offer(best: Incumbent, starts: FloatArray, interval: float) -> None:
    problem = best.problem
    best.work.spend(BUILD_OP * 3 * problem.stages * problem.microbatches)
    best.offer(periodic_order(starts, interval, problem.microbatches), Method.PERIODIC)
