"""The true optimum of a small instance, by branch and bound over every valid order.

For tests alone. It shares nothing with the solvers but the problem and its costs: orders are
enumerated op by op, timed as the contract says (each op as soon as its rank is free and its inputs
have come), and cut off only where the ops that a rank, or a microbatch on its way, has left already
cost too much. Where weights travel :mod:`.weight_oracle` decides.
"""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np

from pipeloom.ir import Costs, Objective, Passing, Problem

from .weight_oracle import least_makespan

_TOLERANCE = 1e-9  # relative, on the memory limit: sums of floats
_F, _B, _W, _BW, _R, _O, _L, _PAIR = range(8)
_RECOMPUTED, _OFFLOADED = 1, 2  # choices for a (stage, microbatch); 0 is to stay


class TooManyOrdersError(Exception):
    """The search has looked at as many beginnings of orders as it was to."""


class Searched(NamedTuple):
    """``least``: the least cost that was found, or the ceiling; ``complete``: none is lower."""

    least: float
    complete: bool


class Tables(NamedTuple):
    """S stages, M microbatches, P ranks.

    ``durations``: (7, S, M), by kind of op. ``both``: (S, S), of an F of one stage and a BW of
    another at once. ``least``: (3, S, M), what F, B and W take of a rank at least. ``into_f``,
    ``into_b``: delays, (S, M). ``kept``: (3, S, M), what is held from F on, by choice. ``limit``:
    (P,). ``before``: (M,), the microbatch that each must follow, or -1. ``canonical``: also in F's.
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
    """What has run: ``done``, (7, S, M), the end of each op, or -1; ``choice``, (S, M);
    ``committed``, (P, 6), the next op of each rank, or -1: kind, stage, microbatch, and the F of a
    pair or the choice of an F; ``clock``, ``first``, ``held``, ``work`` (left), (P,);
    ``copies``, (2, P), until when those out and back take. One more axis in front: the level."""

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
    """The least cost of any valid schedule of ``problem``; ``ceiling`` where none is below that.

    Raises TooManyOrdersError after so many ``nodes``. See :func:`searched`.
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
    """The least cost below ``ceiling`` among the orders that so many ``nodes`` begin.

    Activation passing, any placement, or one copy of the weights each way; BW's where they take
    less than B and W; pairs of an F and a BW at once; recomputation and offload; unlike
    microbatches. Fast enough for hundreds of instances at three ranks and three microbatches.

    Three reductions, each by exchanging the labels of identical microbatches, of those that go one
    way, where nothing is recomputed or offloaded:

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
        """With the microbatch as its last axis; writable, since read-only arrays compile anew."""
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
    """(3, S, M): F, B and W take no less of a rank: what is saved at once, or as a BW, is W's."""
    least = durations[:3].copy()
    backward = np.minimum(least[_B] + least[_W], durations[_BW])
    together = least[_F][:, None] + backward - both[:, :, None]  # (F's stage, B's, M)
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
    """No completion of this partial order costs less: every rank has its remaining work to do, and
    every microbatch the rest of its way, on which a BW is no faster than the shorter of B and BW.
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
    """When the inputs of an F, B or BW have come; -1 where one has not, 0 for other kinds."""
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
    """Runs every committed op whose input has come, each as early as it can."""
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
    """A B, a W or a BW."""
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
    """An R, an O or an L: copies run beside the rank's ops, but those after an O wait for it."""
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
    """Of the ranks with ops left and none committed, that with the earliest clock; or -1."""
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
    """Whether the op may come next on its rank, so far as the rank's own order decides."""
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
    """How many ways the rank has to run a kind of op on a (stage, microbatch): each F beside it,
    each choice for an F, or one; none where it is another's, or a BW saves nothing."""
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
    """What a rank commits to, as in :class:`State`; -1 first where it may not."""
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
    """Each tuple of orders is met once: one rank at a time commits to its next op, and committed
    ops run as their inputs come. Level ``at`` of each array is the state on entry."""
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
        return  # else a deadlock: each rank waits for an op behind another's
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
