"""A list scheduler for unlike microbatches, each with priorities of its own; one stage per rank.

If ranks have several stages, :mod:`.list_scheduler` is used, which reserves memory for later
stages.

All ranks are simulated forward in time. A free rank runs the op with the lowest key among those
whose input has arrived. The key is the microbatch's key for F, B or W plus an offset of the kind
and stage. So microbatches may overtake each other and come back in another order than they entered.
An F must find room in memory; if the next F lacks it, W's run instead. An op does not start if
another one with a lower key is about to arrive and would wait for more than the share ``yields`` of
it. So a long microbatch, for which all others wait, passes the ranks without waiting itself.

The keys are optimized by simulated annealing (:func:`tune_priorities`); more than half of the moves
change the places of microbatches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipeloom.ir.kernels import kernel
from pipeloom.ir.model.ops import FloatArray, IntArray, OpKind

from ..core.kernels import State, earliest, fields, inlined, kind_of, normal, packed, random
from .list_parameters import Stages
from .list_scheduler import UNEVEN

_F, _B, _W = map(int, (OpKind.F, OpKind.B, OpKind.W))


class Priorities(NamedTuple):
    """The parameters of the scheduler.

    ``key``: of each microbatch for F, B and W, in places, (3, M). ``offset``: added to the key by
    kind and stage, (3, S). ``yields``: the largest share of an op that an op with a lower key may
    have to wait for it, (3, S). ``strict``: 1 if no F may overtake one that lacks memory, (1,).
    """

    key: FloatArray
    offset: FloatArray
    yields: FloatArray
    strict: FloatArray

    def copy(self) -> Priorities:
        return Priorities._make(array.copy() for array in self)


class Scratch(NamedTuple):
    """Working arrays of the scheduler.

    ``waiting``: the packed ops of each rank whose input has arrived or is on its way, sorted by
    falling key, (P, 3 M); ``known``: their keys; ``counts``: their number, (P,). ``comes``: when
    inputs arrive, (3, S, M). ``spans``: the span of each rank, an output, (P,).
    """

    waiting: IntArray
    known: FloatArray
    counts: IntArray
    comes: FloatArray
    spans: FloatArray

    @classmethod
    def of(cls, ranks: int, microbatches: int) -> Scratch:
        waiting = np.empty((ranks, 3 * microbatches), np.int64)
        known, comes = np.empty(waiting.shape), np.empty((3, ranks, microbatches))
        return cls(waiting, known, np.empty(ranks, np.int64), comes, np.empty(ranks))


def random_priorities(
    stages: int, rng: np.random.Generator, entries: Sequence[IntArray]
) -> Iterator[Priorities]:
    """Yield random priorities without end.

    Microbatches enter in the order of one of ``entries`` and come back in the same or another one.
    """
    microbatches = len(entries[0])
    while True:
        key = np.tile(np.argsort(entries[int(rng.integers(len(entries)))]).astype(float), (3, 1))
        if rng.random() < 0.3:
            key[_B] = np.argsort(entries[int(rng.integers(len(entries)))])
        offset = np.zeros((3, stages))
        offset[_B] = rng.choice((0.0, -microbatches, -2.0, 2.0, -microbatches / 2))
        offset[_W] = rng.choice((0.0, 3.0, microbatches, 3.0 * microbatches))
        yields = np.full((3, stages), float(rng.choice((0.0, 0.3, 0.7, 1.0))))
        yields[_W] = rng.choice((0.0, 0.3, 0.7))
        yield Priorities(key, offset, yields, np.array([float(rng.integers(2))]))


@kernel
def priority_schedule(  # noqa: PLR0917
    stages: Stages,
    priorities: Priorities,
    makespan: bool,
    order: IntArray,
    scratch: Scratch,
    most: float = np.inf,
) -> float:
    """Fill ``order``, rank after rank, and the spans; returns the order's cost.

    The cost is infinite if no op can start any more for lack of memory, or if it exceeds ``most``.
    """
    f, b, w, m_b, m_w, into_f, into_b, owner, _, _, offsets, limit, work = stages[:13]
    key, offset, yields, strict = priorities
    waiting, known, count, comes, spans = scratch
    number, microbatches = f.shape
    ranks, first = len(limit), owner[0]
    count[:] = 0
    for j in range(microbatches):
        _add(waiting, known, count, comes, first, _F, 0, j, 0.0, key, offset)
    free, clock = np.zeros(ranks), np.full(ranks, np.inf)  # clock: when each rank decides next
    clock[first] = 0.0
    held, opened, left = np.zeros(ranks), np.full(ranks, -1.0), work.copy()
    at = 3 * microbatches * offsets[:-1]
    for _ in range(3 * number * microbatches):
        r, chosen = 0, -1
        while chosen < 0:
            r = earliest(clock)
            if clock[r] == np.inf:
                return np.inf
            chosen, clock[r] = _choose(
                waiting[r], count[r], comes, clock[r], limit[r] - held[r], f, b, w, m_b, yields,
                strict[0],
            )  # fmt: skip
        op, now = waiting[r, chosen], clock[r]
        count[r] -= 1
        for k in range(chosen, count[r]):
            waiting[r, k], known[r, k] = waiting[r, k + 1], known[r, k + 1]
        kind, s, j = fields(op)
        order[at[r]] = op
        at[r] += 1
        if opened[r] < 0.0:
            opened[r] = now
        if now - (0.0 if makespan else opened[r]) + left[r] > most:
            return np.inf
        there, arrival = -1, 0.0
        if kind == _F:
            free[r] = now + f[s, j]
            held[r] += m_b[s, j]
            if s + 1 < number:
                there, arrival = owner[s + 1], free[r] + into_f[s + 1, j]
                _add(waiting, known, count, comes, there, _F, s + 1, j, arrival, key, offset)
            else:
                _add(waiting, known, count, comes, r, _B, s, j, free[r], key, offset)
        elif kind == _B:
            free[r] = now + b[s, j]
            held[r] += m_w[s, j] - m_b[s, j]
            _add(waiting, known, count, comes, r, _W, s, j, free[r], key, offset)
            if s > 0:
                there, arrival = owner[s - 1], free[r] + into_b[s - 1, j]
                _add(waiting, known, count, comes, there, _B, s - 1, j, arrival, key, offset)
        else:
            free[r] = now + w[s, j]
            held[r] -= m_w[s, j]
        left[r] -= free[r] - now
        clock[r] = free[r]
        if there >= 0:
            clock[there] = min(clock[there], max(arrival, free[there]))
    last = 0.0
    for r in range(ranks):
        spans[r] = free[r] - max(opened[r], 0.0)
        last = max(last, free[r])
    return last if makespan else spans.max()


@inlined
def _add(  # noqa: PLR0917
    waiting: IntArray,
    known: FloatArray,
    count: IntArray,
    comes: FloatArray,
    r: int,
    kind: int,
    s: int,
    j: int,
    when: float,
    key: FloatArray,
    offset: FloatArray,
) -> None:
    """Insert an op into the list of rank ``r``; its input arrives at ``when``."""
    at, least = count[r], key[kind, j] + offset[kind, s]
    while at > 0 and known[r, at - 1] <= least:
        waiting[r, at], known[r, at] = waiting[r, at - 1], known[r, at - 1]
        at -= 1
    waiting[r, at], known[r, at] = packed(kind, s, j), least
    comes[kind, s, j] = when
    count[r] += 1


@kernel
def _choose(  # noqa: PLR0917
    waiting: IntArray,
    count: int,
    comes: FloatArray,
    now: float,
    room: float,
    f: FloatArray,
    b: FloatArray,
    w: FloatArray,
    m_b: FloatArray,
    yields: FloatArray,
    strict: float,
) -> tuple[int, float]:
    """The index of the waiting op that a rank runs, and when.

    If none can run, -1 and the time of the next arrival.
    """
    # soonest: earliest arrival among ops with a lower key
    soonest, following, lacking = np.inf, np.inf, False
    for at in range(count - 1, -1, -1):
        op = waiting[at]
        kind, s, j = fields(op)
        when = comes[kind, s, j]
        full = kind == _F and m_b[s, j] > room
        if when > now:
            following = min(following, when)
            if not full:
                soonest = min(soonest, when)
        elif full:
            if not lacking:  # W's run instead
                for k in range(at - 1, -1, -1):
                    if kind_of(waiting[k]) == _W:
                        _, s, j = fields(waiting[k])
                        if soonest >= now + w[s, j] * (1.0 - yields[_W, s]):
                            return k, now
            lacking = True
        elif kind != _F or not lacking or strict == 0.0:
            takes = f[s, j] if kind == _F else b[s, j] if kind == _B else w[s, j]
            if soonest >= now + takes * (1.0 - yields[kind, s]):
                return at, now
    return -1, following


@kernel
def tune_priorities(  # noqa: PLR0917
    stages: Stages,
    priorities: Priorities,  # changed in place
    makespan: bool,
    best: IntArray,  # the best order found, if it costs less than best_cost
    best_cost: float,
    hot: float,  # temperature of the first move, in units of cost; `cold`: of the last
    cold: float,
    moves: int,
    order: IntArray,
    scratch: Scratch,
    state: State,  # changed in place
    stopped: npt.NDArray[np.bool_],  # (1,), ends the search when set
) -> tuple[float, float]:
    """Simulated annealing, ``moves`` moves; returns the costs of ``best`` and ``priorities``."""
    key, offset = priorities.key.copy(), priorities.offset.copy()
    yields = priorities.yields.copy()
    cooling = (cold / hot) ** (1.0 / max(moves, 1))
    temperature, current, current_cost = hot, np.inf, np.inf
    for move in range(-1, moves):
        if stopped[0]:
            break
        temperature *= cooling
        most = current - temperature * np.log(1.0 - random(state))
        if move >= 0:
            for _ in range(1 + int(2 * random(state))):
                _change_one(priorities, state)
        cost = priority_schedule(stages, priorities, makespan, order, scratch, most)
        value = cost + UNEVEN * ((scratch.spans - stages.work) ** 4).mean() ** 0.25
        if move < 0 or value <= most:
            current, current_cost = value, cost
            if cost < best_cost:
                best_cost = cost
                best[:] = order
            key[:], offset[:], yields[:] = priorities.key, priorities.offset, priorities.yields
        else:
            priorities.key[:], priorities.offset[:], priorities.yields[:] = key, offset, yields
    return best_cost, current_cost


@kernel
def _change_one(priorities: Priorities, state: State) -> None:
    """Random move: keys of one or two microbatches, or ``offset`` or ``yields`` of some stages."""
    key, offset, yields, _ = priorities
    number, microbatches = offset.shape[1], key.shape[1]
    chance, kind = random(state), int(3 * random(state))
    if chance < 0.6:
        one, other = int(microbatches * random(state)), int(microbatches * random(state))
        first, last = (kind, kind + 1) if random(state) < 0.7 else (0, 3)
        exchange, step = random(state) < 0.5, 2.0 * normal(state)
        if random(state) < 0.5:
            step = key[_F, other] - key[_F, one] + random(state) - 0.5
        for k in range(first, last):
            if exchange:
                key[k, one], key[k, other] = key[k, other], key[k, one]
            else:
                key[k, one] += step
        return
    since = int(number * random(state))
    until = since + 1
    if random(state) < 0.5:
        since, until = 0, number
    elif random(state) < 0.5:
        until = number
    step = normal(state) * (3.0 if random(state) < 0.3 else 0.7)
    for s in range(since, until):
        if chance < 0.85:
            offset[kind, s] += step
        else:
            yields[kind, s] = min(1.0, max(0.0, yields[kind, s] + 0.4 * step))
