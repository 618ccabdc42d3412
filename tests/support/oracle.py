"""The true optimum of a small instance, by branch and bound over every valid order.

For tests alone. It shares nothing with the solvers but the problem and its costs: orders are
enumerated op by op, timed as the contract says (each op as soon as its rank is free and its inputs
have come), and cut off only where the ops that a rank, or a microbatch on its way, has left already
cost too much.
"""

from __future__ import annotations

import numba
import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.model.placement import Passing
from pipeloom.ir.model.problem import Objective, Problem

_TOLERANCE = 1e-9  # relative, on the memory limit: sums of floats
_FUSED, _PAIR = 3, 4  # beside F, B and W


class TooManyOrdersError(Exception):
    """The search has looked at as many beginnings of orders as it was to."""


def exhaustive_optimum(
    problem: Problem,
    *,
    canonical: bool | None = None,
    ceiling: float = np.inf,
    nodes: int | None = None,
) -> float:
    """The least cost of any valid schedule of ``problem``; ``ceiling`` where none is below that.

    Activation passing, any placement, or one copy of the weights each way; BW's where they take
    less than B and W, and pairs of an F and a BW at once. Fast enough for hundreds of instances at
    three ranks and three microbatches. Raises TooManyOrdersError after so many ``nodes``. Three
    reductions, each by exchanging the labels of identical microbatches, of those that go one way:

    - W(s, .) run in the order of the B(s, .) that they were parted from: nothing waits for a W, so
      all times stay.
    - Microbatches are numbered by the order of F on the last stage, and every B(s, .) runs in that
      order: the k-th B of stage s comes after k B's, hence k F's, of the last stage, so that
      B(s, k) finds its F done and its input there no later than the op whose place it takes did.
      No B runs before every rank has run its first op, so no first start moves.
    - For the makespan F(s, .) too runs in that order (same argument). Not for the period: a rank
      whose first op is another microbatch's F may start later, and span less.

    ``canonical`` forces or forbids the last one.
    """
    assert problem.placement.passing is not Passing.WEIGHTS
    costs = Costs.of(problem)
    if canonical is None:
        canonical = problem.objective is Objective.MAKESPAN
    stages, microbatches = costs.owner.shape
    depth, ranks = 3 * stages * microbatches + 1, problem.ranks
    best = np.array([ceiling])
    both = _pair_times(problem)
    least = _least_times(costs.durations, both)
    work = np.zeros((depth, ranks))
    np.add.at(work[0], costs.owner.ravel(), np.repeat(least.sum(axis=0), microbatches))
    done = np.full((depth, 3, stages, microbatches), -1.0)
    committed = np.full((depth, ranks, 5), -1, dtype=np.int64)
    clock, held = np.zeros((depth, ranks)), np.zeros((depth, ranks))
    first = np.full((depth, ranks), -1.0)
    limit = costs.limit * (1 + _TOLERANCE)
    columns = costs.owner.T.tolist()
    before = [max((i for i in range(j) if columns[i] == columns[j]), default=-1)
              for j in range(microbatches)]  # fmt: skip
    left = np.array([nodes or np.iinfo(np.int64).max])
    _branch(
        0, best, left, done, committed, clock, first, held, work, costs.owner, np.array(before),
        costs.durations[:4], both, least, costs.into_f, costs.into_b, costs.m_b, costs.m_w, limit,
        canonical, problem.objective is Objective.PERIOD,
    )  # fmt: skip
    if left[0] <= 0:
        raise TooManyOrdersError
    return float(best[0])


def _pair_times(problem: Problem) -> np.ndarray:
    """(S, S): of an F of one stage and a BW of another at once; infinite where that saves
    nothing, or no stage says what it takes."""
    stages = problem.profile.stages
    times = np.full((len(stages),) * 2, np.inf)
    for f, forth in enumerate(stages):
        for b, back in enumerate(stages):
            if forth.t_fb is None or back.t_fb is None:
                continue
            saving = min(one.t_f + one.fused - one.t_fb for one in (forth, back))
            time = max(forth.t_f, back.fused, forth.t_f + back.fused - saving)
            if time < forth.t_f + min(back.fused, back.t_b + back.t_w):
                times[f, b] = time
    return times


def _least_times(durations: np.ndarray, both: np.ndarray) -> np.ndarray:
    """(3, S): F, B and W take no less of a rank: what is saved at once, or as a BW, is W's."""
    least = durations[:3].copy()
    backward = np.minimum(least[1] + least[2], durations[_FUSED])
    saved = np.maximum(0.0, least[0][:, None] + backward - both).max(axis=0, initial=0.0)
    total = np.maximum(0.0, backward - saved)
    least[1], least[2] = np.minimum(least[1], total), np.maximum(0.0, total - least[1])
    return least


@numba.njit(cache=True)
def _bound(done, clock, first, work, owner, durations, into_f, into_b, period):
    """No completion of this partial order costs less: every rank has its remaining work to do, and
    every microbatch the rest of its way, on which a BW is no faster than the shorter of B and BW.
    """
    cost = 0.0
    for rank in range(clock.shape[0]):
        since = max(first[rank], 0.0) if period else 0.0
        cost = max(cost, clock[rank] + work[rank] - since)
    stages = owner.shape[0]
    for j in range(owner.shape[1]):
        now = 0.0
        for s in range(stages):
            if done[0, s, j] >= 0.0:
                now = done[0, s, j]
            else:
                now = max(now + into_f[s, j], clock[owner[s, j]]) + durations[0, s]
        for s in range(stages - 1, -1, -1):
            if done[1, s, j] >= 0.0:
                now = done[1, s, j]
            else:
                now = max(now + into_b[s, j], clock[owner[s, j]])
                now += min(durations[1, s], durations[_FUSED, s])
            begun = first[owner[s, j]]
            if begun >= 0.0 or not period:
                cost = max(cost, now - (begun if period else 0.0))
    return cost


@numba.njit(cache=True)
def _begin(kind, stage, microbatch, now, done, into_f, into_b):
    """When the op starts on a rank free from ``now`` on; -1 where its input has not come."""
    came, delay = 0.0, 0.0
    if kind == 0 and stage > 0:
        came, delay = done[0, stage - 1, microbatch], into_f[stage, microbatch]
    elif kind in (1, _FUSED) and stage + 1 < done.shape[1]:
        came, delay = done[1, stage + 1, microbatch], into_b[stage, microbatch]
    return -1.0 if came < 0.0 else max(now, came + delay)


@numba.njit(cache=True)
def _advance(
    done, committed, clock, first, held, work, durations, both, least, into_f, into_b, m_b, m_w
):
    """Runs every committed op whose input has come, each as early as it can."""
    moved = True
    while moved:
        moved = False
        for rank in range(clock.shape[0]):
            kind, stage, microbatch, f, other = committed[rank]
            if kind < 0:
                continue
            if kind == _PAIR:
                begin = _begin(_FUSED, stage, microbatch, clock[rank], done, into_f, into_b)
                also = _begin(0, f, other, clock[rank], done, into_f, into_b)
                begin = -1.0 if min(begin, also) < 0.0 else max(begin, also)
            else:
                begin = _begin(kind, stage, microbatch, clock[rank], done, into_f, into_b)
            if begin < 0.0:
                continue
            if first[rank] < 0.0:
                first[rank] = begin
            clock[rank] = begin + (both[f, stage] if kind == _PAIR else durations[kind, stage])
            if kind == _PAIR:
                done[0, f, other] = clock[rank]
                work[rank] -= least[0, f]
                held[rank] += m_b[f]
            if kind >= _FUSED:
                done[1:, stage, microbatch] = clock[rank]
                work[rank] -= least[1, stage] + least[2, stage]
                held[rank] -= m_b[stage]
            else:
                done[kind, stage, microbatch] = clock[rank]
                work[rank] -= least[kind, stage]
                held[rank] += (m_b[stage], m_w[stage] - m_b[stage], -m_w[stage])[kind]
            committed[rank, 0] = -1
            moved = True


@numba.njit(cache=True)
def _next_rank(done, committed, clock, owner):
    """Of the ranks with ops left and none committed, that with the earliest clock; or -1."""
    chosen = -1
    for stage in range(owner.shape[0]):
        for microbatch in range(owner.shape[1]):
            rank = owner[stage, microbatch]
            free = committed[rank, 0] < 0 and (chosen < 0 or clock[rank] < clock[chosen])
            if free and done[:, stage, microbatch].min() < 0.0:
                chosen = rank
    return chosen


@numba.njit(cache=True)
def _may_run(kind, stage, microbatch, done, held, before, m_b, limit, canonical):
    """Whether the op may come next on its rank, so far as the rank's own order decides."""
    if kind == _FUSED:
        kind = 1
    if done[kind, stage, microbatch] >= 0.0:
        return False
    last = stage == done.shape[1] - 1
    earlier = before[microbatch]
    ordered = kind > 0 or last or canonical
    if ordered and earlier >= 0 and done[kind, stage, earlier] < 0.0:
        parted = kind == 2 and done[1, stage, earlier] < 0.0
        if not parted:
            return False
    if kind == 0:
        return held + m_b[stage] <= limit
    return done[kind - 1, stage, microbatch] >= 0.0


@numba.njit(cache=True)
def _branch(  # noqa: C901
    at, best, left, done, committed, clock, first, held, work,
    owner, before, durations, both, least, into_f, into_b, m_b, m_w, limit, canonical, period,
):  # fmt: skip
    """Each tuple of orders is met once: one rank at a time commits to its next op, and committed
    ops run as their inputs come. Level ``at`` of each array is the state on entry."""
    left[0] -= 1
    if left[0] <= 0:
        return
    cost = _bound(
        done[at], clock[at], first[at], work[at], owner, durations, into_f, into_b, period
    )
    if cost >= best[0] * (1 - 1e-12):
        return
    rank = _next_rank(done[at], committed[at], clock[at], owner)
    if rank < 0:
        if not np.any(committed[at, :, 0] >= 0):
            best[0] = cost
        return  # else a deadlock: each rank waits for an op behind another's
    stages, microbatches = owner.shape
    for kind in (_PAIR, _FUSED, 1, 0, 2):
        for cell in range(stages * microbatches):
            s, j = cell // microbatches, cell % microbatches
            if owner[s, j] != rank:
                continue
            if kind == _FUSED and durations[_FUSED, s] >= durations[1, s] + durations[2, s]:
                continue
            if not _may_run(
                min(kind, _FUSED), s, j, done[at], held[at, rank], before, m_b, limit[rank],
                canonical,
            ):  # fmt: skip
                continue
            for twin in range(stages * microbatches if kind == _PAIR else 1):
                f, other = twin // microbatches, twin % microbatches
                if kind == _PAIR:
                    if owner[f, other] != rank or both[f, s] == np.inf:
                        continue
                    if not _may_run(
                        0, f, other, done[at], held[at, rank], before, m_b, limit[rank], canonical
                    ):
                        continue
                to = at + 1
                done[to], committed[to] = done[at], committed[at]
                clock[to], first[to] = clock[at], first[at]
                held[to], work[to] = held[at], work[at]
                committed[to, rank] = (kind, s, j, f, other)
                _advance(
                    done[to], committed[to], clock[to], first[to], held[to], work[to],
                    durations, both, least, into_f, into_b, m_b, m_w,
                )  # fmt: skip
                _branch(
                    to, best, left, done, committed, clock, first, held, work,
                    owner, before, durations, both, least, into_f, into_b, m_b, m_w, limit,
                    canonical, period,
                )  # fmt: skip
