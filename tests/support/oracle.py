"""The true optimum of a small instance, by branch and bound over every valid order.

For tests alone. It shares nothing with the solvers but the problem and its costs: orders are
enumerated op by op, timed as the contract says (each op as soon as its rank is free and its inputs
have come), and cut off only where the ops a rank has left already cost too much.
"""

from __future__ import annotations

import numba
import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.model.problem import Objective, Problem

_TOLERANCE = 1e-9  # relative, on the memory limit: sums of floats


def exhaustive_optimum(problem: Problem, *, canonical: bool | None = None) -> float:
    """The least cost of any valid schedule of ``problem``; ``inf`` where there is none.

    Activation passing, any placement. Fast enough for hundreds of instances at three ranks and
    three microbatches. Three reductions, each by exchanging the labels of identical microbatches:

    - W(s, .) run in the order of B(s, .): nothing waits for a W, so all times stay.
    - Microbatches are numbered by the order of F on the last stage, and every B(s, .) runs in that
      order: the k-th B of stage s comes after k B's, hence k F's, of the last stage, so that
      B(s, k) finds its F done and its input there no later than the op whose place it takes did.
      No B runs before every rank has run its first op, so no first start moves.
    - For the makespan F(s, .) too runs in that order (same argument). Not for the period: a rank
      whose first op is another microbatch's F may start later, and span less.

    ``canonical`` forces or forbids the last one.
    """
    costs = Costs.of(problem)
    if canonical is None:
        canonical = problem.objective is Objective.MAKESPAN
    stages, microbatches = costs.owner.shape
    depth = 3 * stages * microbatches + 1
    ranks = problem.ranks
    best = np.array([np.inf])
    work = np.zeros((depth, ranks))
    for stage, rank in enumerate(costs.owner[:, 0]):
        work[0, rank] += microbatches * costs.durations[:3, stage].sum()
    done = np.full((depth, 3, stages, microbatches), -1.0)
    committed = np.full((depth, ranks, 3), -1, dtype=np.int64)
    clock, held = np.zeros((depth, ranks)), np.zeros((depth, ranks))
    first = np.full((depth, ranks), -1.0)
    limit = costs.limit * (1 + _TOLERANCE)
    _branch(
        0, best, done, committed, clock, first, held, work,
        costs.owner[:, 0].copy(), costs.durations, costs.into_f[:, 0].copy(),
        costs.into_b[:, 0].copy(), costs.m_b, costs.m_w, limit,
        canonical, problem.objective is Objective.PERIOD,
    )  # fmt: skip
    return float(best[0])


@numba.njit(cache=True)
def _bound(clock, first, work, period):
    """No completion of this partial order costs less: every rank has its remaining work to do."""
    cost = 0.0
    for rank in range(clock.shape[0]):
        since = max(first[rank], 0.0) if period else 0.0
        cost = max(cost, clock[rank] + work[rank] - since)
    return cost


@numba.njit(cache=True)
def _begin(op, now, done, into_f, into_b):
    """When the op starts on a rank free from ``now`` on; -1 where its input has not come."""
    kind, stage, microbatch = op
    came, delay = 0.0, 0.0
    if kind == 0 and stage > 0:
        came, delay = done[0, stage - 1, microbatch], into_f[stage]
    elif kind == 1 and stage + 1 < done.shape[1]:
        came, delay = done[1, stage + 1, microbatch], into_b[stage]
    return -1.0 if came < 0.0 else max(now, came + delay)


@numba.njit(cache=True)
def _advance(done, committed, clock, first, held, work, durations, into_f, into_b, m_b, m_w):
    """Runs every committed op whose input has come, each as early as it can."""
    moved = True
    while moved:
        moved = False
        for rank in range(clock.shape[0]):
            kind, stage, microbatch = committed[rank]
            if kind < 0:
                continue
            begin = _begin(committed[rank], clock[rank], done, into_f, into_b)
            if begin < 0.0:
                continue
            if first[rank] < 0.0:
                first[rank] = begin
            clock[rank] = begin + durations[kind, stage]
            done[kind, stage, microbatch] = clock[rank]
            work[rank] -= durations[kind, stage]
            held[rank] += (m_b[stage], m_w[stage] - m_b[stage], -m_w[stage])[kind]
            committed[rank, 0] = -1
            moved = True


@numba.njit(cache=True)
def _left(done, stage):
    """Whether some op of ``stage`` has not run."""
    for kind in range(3):
        for microbatch in range(done.shape[2]):
            if done[kind, stage, microbatch] < 0.0:
                return True
    return False


@numba.njit(cache=True)
def _next_rank(done, committed, clock, owner):
    """Of the ranks with ops left and none committed, that with the earliest clock; or -1."""
    chosen = -1
    for stage in range(owner.shape[0]):
        rank = owner[stage]
        free = committed[rank, 0] < 0 and (chosen < 0 or clock[rank] < clock[chosen])
        if free and _left(done, stage):
            chosen = rank
    return chosen


@numba.njit(cache=True)
def _may_run(kind, stage, microbatch, done, held, m_b, limit, canonical):
    """Whether the op may come next on its rank, so far as the rank's own order decides."""
    if done[kind, stage, microbatch] >= 0.0:
        return False
    last = stage == done.shape[1] - 1
    ordered = kind > 0 or last or canonical
    if ordered and microbatch > 0 and done[kind, stage, microbatch - 1] < 0.0:
        return False
    if kind == 0:
        return held + m_b[stage] <= limit
    return done[kind - 1, stage, microbatch] >= 0.0


@numba.njit(cache=True)
def _branch(
    at, best, done, committed, clock, first, held, work,
    owner, durations, into_f, into_b, m_b, m_w, limit, canonical, period,
):  # fmt: skip
    """Each tuple of orders is met once: one rank at a time commits to its next op, and committed
    ops run as their inputs come. Level ``at`` of each array is the state on entry."""
    if _bound(clock[at], first[at], work[at], period) >= best[0] * (1 - 1e-12):
        return
    rank = _next_rank(done[at], committed[at], clock[at], owner)
    if rank < 0:
        if not np.any(committed[at, :, 0] >= 0):
            best[0] = _bound(clock[at], first[at], work[at], period)
        return  # else a deadlock: each rank waits for an op behind another's
    for kind in (1, 0, 2):
        for stage in range(owner.shape[0]):
            if owner[stage] != rank:
                continue
            for microbatch in range(done.shape[3]):
                if not _may_run(
                    kind, stage, microbatch, done[at], held[at, rank], m_b, limit[rank], canonical
                ):
                    continue
                to = at + 1
                done[to] = done[at]
                committed[to] = committed[at]
                clock[to], first[to] = clock[at], first[at]
                held[to], work[to] = held[at], work[at]
                committed[to, rank, 0] = kind
                committed[to, rank, 1] = stage
                committed[to, rank, 2] = microbatch
                _advance(
                    done[to], committed[to], clock[to], first[to], held[to], work[to],
                    durations, into_f, into_b, m_b, m_w,
                )  # fmt: skip
                _branch(
                    to, best, done, committed, clock, first, held, work,
                    owner, durations, into_f, into_b, m_b, m_w, limit, canonical, period,
                )  # fmt: skip
