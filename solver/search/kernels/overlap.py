"""Simulated annealing of orders with pairs: an F, a B and a W next to each other that run at once.

``at_once[i]``: a pair begins at position i. Moves make a pair of an F and a B near it (its W is
moved along), separate a pair, or run an op or a whole pair earlier or later. The ops of a class
keep their sequence of microbatches.

It is separate from :mod:`.moves`, because timing an order with pairs takes 8 to 33 % longer than
timing one without.
"""

from __future__ import annotations

import numpy as np

from pipeloom.ir.kernels import kernel
from pipeloom.ir.model.ops import CLASS_MASK, FloatArray, IntArray, OpKind

from ...core.kernels import CostArrays, State, fields, kind_of, random
from ...core.relaxations import Mask
from .moves import keeps_rules

JOIN, PART = 0.35, 0.05  # share of the moves that make a pair, and that separate one
FAR = 120  # most positions that a move changes
_F, _B, _W = map(int, (OpKind.F, OpKind.B, OpKind.W))


@kernel
def time_overlap(  # noqa: PLR0917
    order: IntArray,  # (N,) F's, B's and W's, rank after rank
    at_once: Mask,
    offsets: IntArray,
    durations: FloatArray,
    pair_times: FloatArray,  # (S, S): by stage of the F, stage of the BW
    owner: IntArray,  # (S, M); so are the next two
    into_f: FloatArray,
    into_b: FloatArray,
    begins: FloatArray,  # (P,) out
    ends: FloatArray,  # (P,) out
    f_end: FloatArray,  # (S, M) scratch
    b_end: FloatArray,
) -> bool:
    """Write begin and end of each rank; False if some op can never start."""
    ranks, stages = len(offsets) - 1, len(owner)
    f_end[:] = -1.0
    b_end[:] = -1.0
    begins[:] = -1.0
    ends[:] = 0.0
    position = offsets[:-1].copy()
    ready = np.arange(ranks - 1, -1, -1)
    waits = np.zeros(ranks, dtype=np.bool_)
    top = ranks
    while top > 0:
        top -= 1
        rank = ready[top]
        i, now = position[rank], ends[rank]
        while i < offsets[rank + 1]:
            size = 3 if at_once[i] else 1
            start = now
            for k in range(i, i + min(size, 2)):
                kind, s, j = fields(order[k])
                came = 0.0
                if kind == _F and s > 0:
                    came = f_end[s - 1, j]
                    start = max(start, came + into_f[s, j])
                elif kind == _B and (f_end[s, j] < 0.0 or s + 1 < stages):
                    came = b_end[s + 1, j] if f_end[s, j] >= 0.0 else -1.0
                    start = max(start, came + into_b[s, j])
                if came < 0.0:
                    waits[rank] = True
                    break
            if waits[rank]:
                break
            kind, s, _ = fields(order[i])
            now = start + durations[kind, s]
            if size == 3:
                now = start + pair_times[s, fields(order[i + 1])[1]]
            if begins[rank] < 0.0:
                begins[rank] = start
            for k in range(i, i + min(size, 2)):
                kind, s, j = fields(order[k])
                wakes = -1
                if kind == _F:
                    f_end[s, j] = now
                    wakes = owner[s + 1, j] if s + 1 < stages else -1
                elif kind == _B:
                    b_end[s, j] = now
                    wakes = owner[s - 1, j] if s > 0 else -1
                if wakes >= 0 and waits[wakes]:
                    waits[wakes] = False
                    ready[top] = wakes
                    top += 1
            i += size
        position[rank], ends[rank] = i, now
    return bool((position == offsets[1:]).all())


@kernel
def _pair_start(at_once: Mask, first: int, place: int) -> int:
    """The position where the pair with ``place`` begins; ``place`` itself if there is none."""
    for back in range(1, 3):
        if place - back >= first and at_once[place - back]:
            return place - back
    return place


@kernel
def _make_pair(  # noqa: PLR0917
    order: IntArray, at_once: Mask, first: int, last: int, reach: int, state: State
) -> tuple[int, int]:
    """Make a pair of a random F and the next B, or the last one before it.

    Returns the first and last position changed, or (-1, -1).
    """
    at = first + int(random(state) * (last - first))
    while at < last and (kind_of(order[at]) != _F or at_once[at]):
        at += 1
    step = 1 if random(state) < 0.5 else -1
    other = at + step
    while first <= other < last and abs(other - at) <= reach:
        if kind_of(order[other]) == _B and _pair_start(at_once, first, other) == other:
            break
        other += step
    if at >= last or not (first <= other < last) or abs(other - at) > reach:
        return -1, -1
    weight = order[other] - _B + _W
    third = other + 1
    while third < last and order[third] != weight:
        third += 1
    low, high = min(at, other), max(at, third)
    if third >= last or high - low >= FAR:
        return -1, -1
    anchor = at if random(state) < 0.5 else other
    old, was = order[low : high + 1].copy(), at_once[low : high + 1].copy()
    pair = order[at], order[other], weight
    to = low
    for k in range(low, high + 1):
        if k == anchor:
            for n in range(3):
                order[to] = pair[n]
                at_once[to] = n == 0
                to += 1
        elif k not in (at, other, third):
            order[to], at_once[to] = old[k - low], was[k - low]
            to += 1
    return low, high


@kernel
def _move_op_or_pair(  # noqa: PLR0917
    order: IntArray, at_once: Mask, first: int, last: int, reach: int, state: State
) -> tuple[int, int]:
    """Move an op or a pair. Returns the first and last position changed, or (-1, -1)."""
    at = _pair_start(at_once, first, first + int(random(state) * (last - first)))
    size = 3 if at_once[at] else 1
    distance = 1 + int(reach * random(state) ** 3)
    low, high = at, at + size  # high: one past the last
    if random(state) < 0.5:
        while distance > 0 and high < last:
            high += 3 if at_once[high] else 1
            distance -= 1
        turn = size
    else:
        while distance > 0 and low > first:
            low = _pair_start(at_once, first, low - 1)
            distance -= 1
        turn = at - low
    if high - low <= size or high - low >= FAR:
        return -1, -1
    old, was = order[low:high].copy(), at_once[low:high].copy()
    length = high - low
    for k in range(length):
        order[low + k] = old[(k + turn) % length]
        at_once[low + k] = was[(k + turn) % length]
    _renumber(order, old, low)
    return low, high - 1


@kernel
def _renumber(order: IntArray, old: IntArray, low: int) -> None:
    """Give the ops of each class from ``low`` on their microbatches in the sequence of ``old``."""
    taken = np.zeros(len(old), dtype=np.bool_)
    for k in range(low, low + len(old)):
        kind = order[k] & CLASS_MASK
        for n in range(len(old)):
            if not taken[n] and old[n] & CLASS_MASK == kind:
                taken[n] = True
                order[k] = old[n]
                break


@kernel
def _pairs_differ(order: IntArray, at_once: Mask, low: int, high: int) -> bool:
    """Whether each pair is an F and the B and W of another stage or microbatch."""
    for k in range(low, high + 1):
        if at_once[k]:
            f, b, w = order[k], order[k + 1], order[k + 2]
            if kind_of(b) != _B or w != b - _B + _W or f - _F == b - _B:
                return False
    return True


@kernel
def anneal_overlap(  # noqa: PLR0917
    order: IntArray,  # (N,) changed in place
    at_once: Mask,  # (N,) changed in place
    best: IntArray,  # (N,) changed in place
    best_at_once: Mask,  # (N,) out: the best found, if it costs less than best_cost
    best_cost: float,
    offsets: IntArray,
    costs: CostArrays,
    pair_times: FloatArray,
    makespan: bool,
    hot: float,  # temperature of the first move, in units of cost; `cold`: of the last
    cold: float,
    moves: int,
    reach: int,  # largest distance of a move, in ops
    state: State,  # (1,) of the random numbers; changed in place
    stopped: Mask,  # (1,) ends the search when another thread sets it
) -> float:
    """Simulated annealing with ``moves`` moves; returns the cost of ``best``."""
    durations, owner, into_f, into_b, m_b, m_w, limit = costs
    ranks = len(offsets) - 1
    begins, ends = np.empty(ranks), np.empty(ranks)
    f_end, b_end = np.empty(owner.shape), np.empty(owner.shape)
    done = np.zeros(owner.shape, dtype=np.int8)
    old, was = order.copy(), at_once.copy()
    cooling = (cold / hot) ** (1.0 / max(moves, 1))
    temperature, current, critical = hot, np.inf, 0
    for move in range(-1, moves):
        if stopped[0]:
            break
        temperature *= cooling
        low, high = -1, -1
        if move >= 0:
            rank = critical if random(state) < 0.3 else int(random(state) * ranks)
            first, last = offsets[rank], offsets[rank + 1]
            if last == first:
                continue
            chance = random(state)
            if chance < JOIN:
                low, high = _make_pair(order, at_once, first, last, reach, state)
            elif chance < JOIN + PART:
                place = _pair_start(at_once, first, first + int(random(state) * (last - first)))
                if at_once[place]:
                    low, high = place, place
                    at_once[place] = False
            else:
                low, high = _move_op_or_pair(order, at_once, first, last, reach, state)
            if low < 0:
                continue
            keeps = _pairs_differ(order, at_once, low, high)
            keeps = keeps and keeps_rules(
                order, first, low, high, m_b, m_w, limit[rank], None, done
            )
            if not keeps:
                order[low : high + 1] = old[low : high + 1]
                at_once[low : high + 1] = was[low : high + 1]
                continue
        value, cost, longest = np.inf, np.inf, 0
        if time_overlap(
            order, at_once, offsets, durations, pair_times, owner, into_f, into_b,
            begins, ends, f_end, b_end,
        ):  # fmt: skip
            span, total, opens, last_end = 0.0, 0.0, np.inf, 0.0
            for r in range(ranks):
                if offsets[r + 1] > offsets[r]:
                    total += ends[r] - begins[r]
                    opens = min(opens, begins[r])
                    longer = ends[r] > last_end if makespan else ends[r] - begins[r] > span
                    longest = r if longer else longest
                    last_end, span = max(last_end, ends[r]), max(span, ends[r] - begins[r])
            cost = last_end - opens if makespan else span
            value = cost + 0.1 * total / ranks
        if move < 0 or value <= current - temperature * np.log(1.0 - random(state)):
            current, critical = value, longest
            if low >= 0:
                old[low : high + 1] = order[low : high + 1]
                was[low : high + 1] = at_once[low : high + 1]
            if cost < best_cost:
                best_cost = cost
                best[:] = order
                best_at_once[:] = at_once
        else:
            order[low : high + 1] = old[low : high + 1]
            at_once[low : high + 1] = was[low : high + 1]
    return best_cost
