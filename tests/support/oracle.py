"""The optimum of a small instance, by branch and bound over every valid order.

Only for tests. It shares nothing with the solvers except the problem and its costs. Orders are
enumerated op by op and timed as the contract says: each op starts as soon as its rank is free and
its inputs have arrived. A branch is cut only if the remaining ops of a rank, or of a microbatch,
already cost too much. With weight passing, :mod:`.weight_oracle` is used.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from pipeloom.ir import Costs, Objective, Passing, Problem

from .weight_oracle import least_makespan

_TOLERANCE = 1e-9  # relative, for the memory limit: rounding of sums
_F, _B, _W, _BW, _R, _O, _L, _PAIR = range(8)
_RECOMPUTED, _OFFLOADED = 1, 2  # choices for a (stage, microbatch); 0: kept


class TooManyOrdersError(Exception):
    """The search has reached its limit on partial orders."""


class Searched(NamedTuple):
    """``least``: the least cost found, or the ceiling; ``complete``: whether it is proven."""

    least: float
    complete: bool


class Tables(NamedTuple):
    """Tables for S stages, M microbatches, P ranks.

    ``durations``: by kind of op, (7, S, M). ``both``: of an F of one stage and a BW of another that
    run at once, (S, S). ``least``: minimum time of F, B and W on a rank, (3, S, M). ``into_f``,
    ``into_b``: delays, (S, M). ``kept``: memory held from F on, by choice, (3, S, M). ``limit``:
    (P,). ``before``: the microbatch that each must follow, or -1, (M,). ``canonical``: also for
    F's.
    """

    durations: np.ndarray
    both: np.ndarray
    least: np.ndarray
    into_f: np.ndarray
    into_b: np.ndarray
    m_b: np.ndarray
    m_w: np.ndarray
    kept: np.ndarray
    limit: np.ndarray
    owner: np.ndarray
    before: np.ndarray
    canonical: bool
    period: bool


class State(NamedTuple):
    """The state of the search; arrays have another first axis, the level.

    ``done``: the end of each op, or -1, (7, S, M). ``choice``: (S, M). ``committed``: the next op
    of each rank, or -1, (P, 6): kind, stage, microbatch, and the F of a pair or the choice of an F.
    ``clock``, ``first``, ``held``, ``work`` (remaining): (P,). ``copies``: when the copies to and
    from the host end, (2, P).
    """

    done: np.ndarray
    choice: np.ndarray
    committed: np.ndarray
    clock: np.ndarray
    first: np.ndarray
    held: np.ndarray
    work: np.ndarray
    copies: np.ndarray


def exhaustive_optimum(
    problem: Problem,
    *,
    canonical: bool | None = None,
    ceiling: float = np.inf,
    nodes: int | None = None,
) -> float:
    """The least cost of any valid schedule of ``problem``; ``ceiling`` if none is below it.

    Raises TooManyOrdersError after this number of ``nodes``. See :func:`searched`.
    """
    if problem.placement.passing is Passing.WEIGHTS:
        assert problem.objective is Objective.MAKESPAN
        return least_makespan(problem)
    found = searched(problem, canonical=canonical, ceiling=ceiling, nodes=nodes)
    if not found.complete:
        raise TooManyOrdersError
    return found.least


def searched(
    problem: Problem,
    *,
    canonical: bool | None = None,
    ceiling: float = np.inf,
    nodes: int | None = None,
) -> Searched:
    """The least cost below ``ceiling``, searching at most ``nodes`` partial orders.

    It supports activation passing with any placement or with two copies of the weights in opposite
    directions; BW's that take less than B and W; pairs of an F and a BW that run at once;
    recomputation and offload; and microbatches that differ. It is fast enough for hundreds of
    instances with three ranks and three microbatches.

    There are three reductions. Each exchanges the labels of identical microbatches (with the same
    direction), and applies without recomputation and offload:

    - W(s, .) run in the order of the B(s, .) from which they were split: nothing waits for a W, so
      all times stay the same.
    - Microbatches are numbered by the order of F on the last stage, and every B(s, .) runs in that
      order: the k-th B of stage s comes after k B's, hence k F's, of the last stage, so that
      B(s, k) finds its F done and its input available no later than the op that it replaces. No B
      runs before every rank has run its first op, so first starts stay the same.
    - For the makespan, F(s, .) also runs in that order (same argument). This does not hold for the
      period: a rank whose first op is another microbatch's F may start later, and have a shorter
      span.

    ``canonical`` forces or forbids the last one.
    """
    assert problem.placement.passing is not Passing.WEIGHTS
    tables = _tables(problem)
    if canonical is not None:
        tables = tables._replace(canonical=canonical)
    shape, ranks = tables.owner.shape, problem.ranks
    depth = 5 * tables.owner.size + 1
    state = State(
        done=np.full((depth, 7, *shape), -1.0),
        choice=np.zeros((depth, *shape), dtype=np.int64),
        committed=np.full((depth, ranks, 6), -1, dtype=np.int64),
        clock=np.zeros((depth, ranks)),
        first=np.full((depth, ranks), -1.0),
        held=np.zeros((depth, ranks)),
        work=np.zeros((depth, ranks)),
        copies=np.zeros((depth, 2, ranks)),
    )
    np.add.at(state.work[0], tables.owner.ravel(), tables.least.sum(axis=0).ravel())
    best, left = np.array([ceiling]), np.array([nodes or np.iinfo(np.int64).max])
    _branch(0, best, left, tables, state)
    return Searched(float(best[0]), bool(left[0] > 0))


def _tables(problem: Problem) -> Tables:
    costs = Costs.of(problem)
    shape = costs.owner.shape

    def spread(table: np.ndarray, axes: int) -> np.ndarray:
        """The table with microbatches as last axis; writable, since read-only arrays are compiled
        separately."""
        wide = table if table.ndim > axes else table[..., None]
        return np.array(np.broadcast_to(wide, (*table.shape[: axes - 1], *shape)))

    durations = spread(costs.durations[:7], 2)
    kept = spread(costs.kept[[0, 1, -1]], 2)
    m_b, m_w = spread(costs.m_b, 1), spread(costs.m_w, 1)
    both = _pair_times(problem)
    alike = not (problem.profile.unlike or np.isfinite(durations[[_R, _O]]).any())
    columns = costs.owner.T.tolist()
    before = [
        max((i for i in range(j) if alike and columns[i] == columns[j]), default=-1)
        for j in range(shape[1])
    ]
    return Tables(
        durations, both, _least_times(durations, both), costs.into_f, costs.into_b,
        m_b, m_w, kept, costs.limit * (1 + _TOLERANCE), costs.owner.copy(), np.array(before),
        canonical=problem.objective is Objective.MAKESPAN,
        period=problem.objective is Objective.PERIOD,
    )  # fmt: skip


def _pair_times(problem: Problem) -> np.ndarray:
    """Times of an F of one stage and a BW of another that run at once, (S, S); infinite if this
    saves nothing or is not known."""
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
    """Minimum times of F, B and W on a rank, (3, S, M); savings of pairs or BW are subtracted from
    W."""
    least = durations[:3].copy()
    backward = np.minimum(least[_B] + least[_W], durations[_BW])
    together = least[_F][:, None] + backward - both[:, :, None]  # by stage of F, stage of B, and M
    saved = np.maximum(0.0, together).max(axis=0, initial=0.0)
    total = np.maximum(0.0, backward - saved)
    least[_B], least[_W] = np.minimum(least[_B], total), np.maximum(0.0, total - least[_B])
    return least


@numba.njit(cache=True)
def _level(state, at):
    return State(
        state.done[at], state.choice[at], state.committed[at], state.clock[at], state.first[at],
        state.held[at], state.work[at], state.copies[at],
    )  # fmt: skip


@numba.njit(cache=True)
def _copy(state, to):
    to.done[:], to.choice[:], to.committed[:] = state.done, state.choice, state.committed
    to.clock[:], to.first[:], to.held[:] = state.clock, state.first, state.held
    to.work[:], to.copies[:] = state.work, state.copies


@numba.njit(cache=True)
def _bound(tables, now):
    """Lower bound on the cost of every completion of this partial order.

    Every rank has its remaining work, and every microbatch the rest of its path, on which a BW is
    no faster than the shorter of B and BW.
    """
    cost, owner, durations = 0.0, tables.owner, tables.durations
    for rank in range(now.clock.shape[0]):
        since = max(now.first[rank], 0.0) if tables.period else 0.0
        cost = max(cost, now.clock[rank] + now.work[rank] - since)
    stages = owner.shape[0]
    for j in range(owner.shape[1]):
        time = 0.0
        for s in range(stages):
            if now.done[_F, s, j] >= 0.0:
                time = now.done[_F, s, j]
            else:
                time = max(time + tables.into_f[s, j], now.clock[owner[s, j]])
                time += durations[_F, s, j]
        for s in range(stages - 1, -1, -1):
            if now.done[_B, s, j] >= 0.0:
                time = now.done[_B, s, j]
            else:
                time = max(time + tables.into_b[s, j], now.clock[owner[s, j]])
                time += min(durations[_B, s, j], durations[_BW, s, j])
            begun = now.first[owner[s, j]]
            if begun >= 0.0 or not tables.period:
                cost = max(cost, time - (begun if tables.period else 0.0))
    return cost


@numba.njit(cache=True)
def _came(kind, stage, microbatch, tables, now):
    """When the inputs of an F, B or BW have arrived; -1 if one has not; 0 for other kinds."""
    came, delay = 0.0, 0.0
    if kind == _F and stage > 0:
        came, delay = now.done[_F, stage - 1, microbatch], tables.into_f[stage, microbatch]
    elif kind in (_B, _BW) and stage + 1 < tables.owner.shape[0]:
        came, delay = now.done[_B, stage + 1, microbatch], tables.into_b[stage, microbatch]
    if came < 0.0:
        return -1.0
    loaded = now.done[_L, stage, microbatch] if kind in (_B, _BW) else 0.0
    return max(came + delay, loaded)


@numba.njit(cache=True)
def _advance(tables, now):
    """Run every committed op whose input has arrived, as early as possible."""
    moved = True
    while moved:
        moved = False
        for rank in range(now.clock.shape[0]):
            kind, stage, microbatch, f, other, choice = now.committed[rank]
            if kind < 0:
                continue
            begin = _came(_BW if kind == _PAIR else kind, stage, microbatch, tables, now)
            if kind == _PAIR:
                also = _came(_F, f, other, tables, now)
                begin = -1.0 if min(begin, also) < 0.0 else max(begin, also)
            if begin < 0.0:
                continue
            begin = max(begin, now.clock[rank])
            if now.first[rank] < 0.0:
                now.first[rank] = begin
            if kind >= _R and kind < _PAIR:
                _between(kind, stage, microbatch, rank, tables, now)
            elif kind == _PAIR:
                now.clock[rank] = begin + tables.both[f, stage]
                _forward(f, other, 0, rank, tables, now)
                _backward(_BW, stage, microbatch, rank, tables, now)
            else:
                now.clock[rank] = begin + tables.durations[kind, stage, microbatch]
                if kind == _F:
                    _forward(stage, microbatch, choice, rank, tables, now)
                else:
                    _backward(kind, stage, microbatch, rank, tables, now)
            now.committed[rank, 0] = -1
            moved = True


@numba.njit(cache=True)
def _forward(s, j, choice, rank, tables, now):
    now.done[_F, s, j], now.choice[s, j] = now.clock[rank], choice
    now.work[rank] -= tables.least[_F, s, j]
    now.held[rank] += tables.kept[_RECOMPUTED, s, j] if choice == _RECOMPUTED else tables.m_b[s, j]
    if choice == _RECOMPUTED:
        now.work[rank] += tables.durations[_R, s, j]


@numba.njit(cache=True)
def _backward(kind, s, j, rank, tables, now):
    """Run a B, a W or a BW."""
    m_b, m_w = tables.m_b[s, j], tables.m_w[s, j]
    if kind in (_B, _BW):
        now.done[_B, s, j] = now.clock[rank]
        now.work[rank] -= tables.least[_B, s, j]
    if kind in (_W, _BW):
        now.done[_W, s, j] = now.clock[rank]
        now.work[rank] -= tables.least[_W, s, j]
    now.held[rank] -= m_b if kind == _BW else (m_b - m_w if kind == _B else m_w)


@numba.njit(cache=True)
def _between(kind, s, j, rank, tables, now):
    """Run an R, an O or an L. Copies overlap with the rank's ops, but ops after an O wait for
    it."""
    time, clock = tables.durations[kind, s, j], now.clock[rank]
    lack = tables.m_b[s, j] - tables.kept[now.choice[s, j], s, j]
    if kind == _R:
        now.done[_R, s, j] = now.clock[rank] = clock + time
        now.work[rank] -= time
    else:
        way = kind - _O
        begin = now.done[_F, s, j] if kind == _O else clock
        ends = max(begin, now.copies[way, rank]) + time
        now.done[kind, s, j] = now.copies[way, rank] = ends
        if kind == _O:
            now.clock[rank] = max(clock, ends)
    now.held[rank] += -lack if kind == _O else lack


@numba.njit(cache=True)
def _next_rank(tables, now):
    """The rank with the earliest clock among those with remaining ops but none committed; or -1."""
    chosen, owner = -1, tables.owner
    for stage in range(owner.shape[0]):
        for microbatch in range(owner.shape[1]):
            rank = owner[stage, microbatch]
            free = now.committed[rank, 0] < 0 and now.done[:3, stage, microbatch].min() < 0.0
            if free and (chosen < 0 or now.clock[rank] < now.clock[chosen]):
                chosen = rank
    return chosen


@numba.njit(cache=True)
def _may_run(kind, s, j, choice, tables, now):
    """Whether the rank's own order allows this op next."""
    kind, done = (_B if kind == _BW else kind), now.done
    if done[kind, s, j] >= 0.0 or tables.durations[kind, s, j] == np.inf:
        return False
    held, m_b = now.held[tables.owner[s, j]], tables.m_b[s, j]
    most = tables.limit[tables.owner[s, j]]
    if kind >= _R:
        own = now.choice[s, j] == (_RECOMPUTED if kind == _R else _OFFLOADED)
        if not own or done[_O if kind == _L else _F, s, j] < 0.0:
            return False
        return kind == _O or held + m_b - tables.kept[now.choice[s, j], s, j] <= most
    earlier = tables.before[j]
    ordered = kind > _F or s == done.shape[1] - 1 or tables.canonical
    if ordered and earlier >= 0 and done[kind, s, earlier] < 0.0:
        parted = kind == _W and done[_B, s, earlier] < 0.0
        if not parted:
            return False
    if kind == _F:
        return held + (tables.kept[_RECOMPUTED, s, j] if choice == _RECOMPUTED else m_b) <= most
    if done[kind - 1, s, j] < 0.0:
        return False
    if kind == _W or now.choice[s, j] == 0:
        return True
    return done[_R if now.choice[s, j] == _RECOMPUTED else _L, s, j] >= 0.0


@numba.njit(cache=True)
def _partners(kind, cell, rank, tables):
    """The number of ways to run a kind of op on a (stage, microbatch): one per F of a pair, one per
    choice for an F, or one; 0 if it is another rank's, or if a BW saves nothing."""
    s, j = cell // tables.owner.shape[1], cell % tables.owner.shape[1]
    times = tables.durations[:, s, j]
    if tables.owner[s, j] != rank or (kind == _BW and times[_BW] >= times[_B] + times[_W]):
        return 0
    if kind == _PAIR:
        return tables.owner.size
    if kind != _F:
        return 1
    return 3 if times[_O] < np.inf else 2 if times[_R] < np.inf else 1


@numba.njit(cache=True)
def _op(kind, cell, n, tables, now):
    """The fields of a commitment, as in :class:`State`; the first is -1 if it is not allowed."""
    microbatches = tables.owner.shape[1]
    s, j = cell // microbatches, cell % microbatches
    f, other, backward = -1, -1, kind
    if kind == _PAIR:
        f, other, backward = n // microbatches, n % microbatches, _BW
        both = tables.owner[f, other] == tables.owner[s, j] and tables.both[f, s] < np.inf
        if not (both and _may_run(_F, f, other, 0, tables, now)):
            backward = -1
    elif n == _RECOMPUTED and tables.durations[_R, s, j] == np.inf:
        backward = -1
    if backward < 0 or not _may_run(backward, s, j, n, tables, now):
        return (-1, s, j, f, other, n)
    return (kind, s, j, f, other, n)


@numba.njit(cache=True)
def _branch(at, best, left, tables, state):
    """Enumerate each tuple of orders once: one rank at a time commits to its next op, and committed
    ops run when their inputs arrive. Level ``at`` of each array is the state on entry."""
    left[0] -= 1
    if left[0] <= 0:
        return
    now = _level(state, at)
    cost = _bound(tables, now)
    if cost >= best[0] * (1 - 1e-12):
        return
    rank = _next_rank(tables, now)
    if rank < 0:
        if not np.any(now.committed[:, 0] >= 0):
            best[0] = cost
        return  # a deadlock
    for kind in (_PAIR, _BW, _B, _F, _W, _R, _O, _L):
        for cell in range(tables.owner.size):
            for n in range(_partners(kind, cell, rank, tables)):
                op = _op(kind, cell, n, tables, now)
                if op[0] >= 0:
                    to = _level(state, at + 1)
                    _copy(now, to)
                    to.committed[rank] = op
                    _advance(tables, to)
                    _branch(at + 1, best, left, tables, state)
