"""Evaluators that time orders forward in time, for what the simulator's kernel cannot do.

- *Filling*: the order has only F's and B's, and W's fill the time between them. The rank with the
  earliest clock runs its next op, or waits for that op's input. It runs the W that has waited
  longest instead, if the next F lacks memory or the next input arrives late enough.
- *Pairs*: an F that is followed by the B and the W of another microbatch or stage runs at the same
  time as these two if that is faster.

The loops take their arrays out of the tuples once, and pass no tuples on, because a call passes the
arrays of a tuple one by one.
"""

from __future__ import annotations

import numpy as np

from pipeloom.ir.cost.cost_tables import of_kind, of_pair
from pipeloom.ir.model.ops import FloatArray, IntArray, OpKind

from ...core.kernels import earliest, fields, inlined, kind_of, lean
from .lists import Filling, Lists, PairTimes

_F, _B, _W = map(int, (OpKind.F, OpKind.B, OpKind.W))


@lean
def play(lists: Lists, filling: Filling | None, pairs: PairTimes | None) -> bool:
    """Write the start and end of all ops to ``lists``, with W's filled in or with pairs.

    With ``filling``, the order has only F's and B's, and W's are filled in; else, with ``pairs``,
    the ops of a pair run together. Returns False if some op can never start, or if both are None.
    """
    clock, free, held = lists.clock, lists.free, lists.held
    for r in range(len(clock)):
        clock[r], free[r], held[r] = 0.0, 0.0, 0.0
        lists.position[r] = lists.offsets[r]
    lists.f_end[:], lists.b_end[:] = np.inf, np.inf
    if filling is not None:
        return _fill(lists, filling)
    if pairs is not None:
        return _run(lists, pairs)
    return False


@lean
def _fill(lists: Lists, filling: Filling) -> bool:
    """Time the F's and B's, with W's filled in between; return whether every op can start.

    Writes the times to ``lists``. Writes the order with W's to ``filling.order`` and, for each of
    its ops, the position in the order without W's to ``filling.source``.
    """
    order, offsets, f_end, b_end = lists.order, lists.offsets, lists.f_end, lists.b_end
    clock, free, held, position = lists.clock, lists.free, lists.held, lists.position
    durations, owner, into_f, into_b, m_b, m_w, limit = lists.costs
    places, oldest, newest, queue = filling.at, filling.oldest, filling.newest, filling.queue
    for r in range(len(clock)):
        places[r], oldest[r], newest[r] = filling.begins[r], offsets[r] // 2, offsets[r] // 2
    left = len(lists.start)
    while left > 0:
        r = earliest(clock)
        now = clock[r]
        if now == np.inf:
            return False
        op, came, full = -1, np.inf, False
        if position[r] < offsets[r + 1]:
            op = order[position[r]]
            kind, stage, microbatch = fields(op)
            came = _arrival(op, f_end, b_end, into_f, into_b)
            full = kind == _F and held[r] + of_pair(m_b, stage, microbatch) > limit[r]
        if full or came > now:
            op = -1
            if oldest[r] < newest[r]:
                op = queue[oldest[r]]
                _, stage, microbatch = fields(op)
                takes = of_kind(durations, _W, stage, microbatch)
                if not full and came - now < filling.patience[r] * takes:
                    op = -1
            if op < 0:
                if full:
                    return False
                clock[r] = came
                continue
        at = places[r]
        places[r] += 1
        filling.order[at], filling.source[at] = op, position[r]
        kind, stage, microbatch = fields(op)
        if kind == _F:
            held[r] += of_pair(m_b, stage, microbatch)
            position[r] += 1
        elif kind == _B:
            held[r] += of_pair(m_w, stage, microbatch) - of_pair(m_b, stage, microbatch)
            position[r] += 1
            queue[newest[r]] = op - _B + _W
            newest[r] += 1
        else:
            held[r] -= of_pair(m_w, stage, microbatch)
            oldest[r] += 1
        ends = now + of_kind(durations, kind, stage, microbatch)
        lists.start[at], lists.end[at] = now, ends
        clock[r] = free[r] = ends
        wakes, arrival = _finish(op, ends, f_end, b_end, owner, into_f, into_b)
        if wakes >= 0 and wakes != r:
            clock[wakes] = min(clock[wakes], max(arrival, free[wakes]))
        left -= 1
    return True


@lean
def _run(lists: Lists, pairs: PairTimes) -> bool:
    """Time the ops, where the ops of a pair run together; return whether every op can start.

    A rank runs its ops until one lacks its input. Then the ranks that were waiting for outputs of
    this rank continue.
    """
    order, offsets, f_end, b_end = lists.order, lists.offsets, lists.f_end, lists.b_end
    clock, free, position, ready = lists.clock, lists.free, lists.position, lists.ready
    durations, owner, into_f, into_b, _, _, _ = lists.costs
    top, left = len(free), len(order)
    for r in range(top):
        ready[r] = r
    while top > 0:
        top -= 1
        r = ready[top]
        at, now = position[r], free[r]
        while at < offsets[r + 1]:
            count, came = 1, _arrival(order[at], f_end, b_end, into_f, into_b)
            kind, stage, microbatch = fields(order[at])
            takes = of_kind(durations, kind, stage, microbatch)
            if kind == _F and is_pair(order, at, offsets[r + 1], durations, pairs):
                _, other, _ = fields(order[at + 1])
                came = max(came, _arrival(order[at + 1], f_end, b_end, into_f, into_b))
                count, takes = 3, pairs[stage, other]
            if came == np.inf:
                break
            start = max(now, came)
            now = start + takes
            for k in range(at, at + count):
                lists.start[k], lists.end[k] = start, now
                wakes, _ = _finish(order[k], now, f_end, b_end, owner, into_f, into_b)
                if wakes >= 0 and clock[wakes] == np.inf:
                    clock[wakes], ready[top] = 0.0, wakes
                    top += 1
            at += count
        left -= at - position[r]
        position[r], free[r], clock[r] = at, now, np.inf
    return left == 0


@lean
def is_pair(order: IntArray, at: int, stop: int, durations: FloatArray, pairs: PairTimes) -> bool:
    """Return whether the op at position ``at`` is an F that runs as a pair with the next two.

    The next two must be a B and its W, of another stage or microbatch than the F, and the pair must
    be faster than the three ops one after the other. ``stop``: the position after the rank's last
    op. ``pairs``: the time of a pair, by the stages of F and B, (S, S).
    """
    if at + 2 >= stop or kind_of(order[at]) != _F or kind_of(order[at + 1]) != _B:
        return False
    if order[at + 2] != order[at + 1] - _B + _W or order[at + 1] - _B == order[at] - _F:
        return False
    _, f, _ = fields(order[at])
    _, b, _ = fields(order[at + 1])
    return bool(pairs[f, b] < durations[_F, f] + durations[_B, b] + durations[_W, b])


@inlined
def _arrival(
    op: int, f_end: FloatArray, b_end: FloatArray, into_f: FloatArray, into_b: FloatArray
) -> float:
    """Return when the input of an op arrives from another stage.

    Returns 0 if no such input is needed, and infinity if the end of the op that produces it is not
    known yet. ``f_end``, ``b_end``: the end of each F and B, infinite if not known, (S, M).
    ``into_f``, ``into_b``: the delay of each F's and B's input, (S, M).
    """
    kind, stage, microbatch = fields(op)
    came = 0.0
    if kind == _F and stage > 0:
        came = f_end[stage - 1, microbatch] + into_f[stage, microbatch]
    elif kind == _B and stage < len(f_end) - 1:
        came = b_end[stage + 1, microbatch] + into_b[stage, microbatch]
    return came


@inlined
def _finish(  # noqa: PLR0917
    op: int,
    end: float,
    f_end: FloatArray,
    b_end: FloatArray,
    owner: IntArray,
    into_f: FloatArray,
    into_b: FloatArray,
) -> tuple[int, float]:
    """Record the end of an op; return the rank that needs its output, and the arrival time there.

    Returns (-1, infinity) if no other stage needs the output. ``f_end``, ``b_end``: where the end
    is recorded. ``owner``: the rank of each stage and microbatch, (S, M). ``into_f``, ``into_b``:
    as for :func:`_arrival`.
    """
    kind, stage, microbatch = fields(op)
    wakes, arrival = -1, np.inf
    if kind == _F:
        f_end[stage, microbatch] = end
        if stage + 1 < len(owner):
            wakes, arrival = owner[stage + 1, microbatch], end + into_f[stage + 1, microbatch]
    elif kind == _B:
        b_end[stage, microbatch] = end
        if stage > 0:
            wakes, arrival = owner[stage - 1, microbatch], end + into_b[stage - 1, microbatch]
    return wakes, arrival
