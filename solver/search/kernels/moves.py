"""Moves of the local search on orders.

A move takes one op of a rank, or several in a row, and puts it a few positions earlier or later.
Half of the moves are made on the critical path to the end of the rank that decides the cost, as
neighbourhoods for job shops do (Nowicki and Smutnicki, 1996). There an op leaves its *block*, a
sequence of ops that a rank runs without a pause, to before the block's first op or behind its last.
Other moves follow a microbatch from rank to rank, or make a pair.

Ops of the same kind and stage that an op passes pass their microbatches on, so the sequence of
microbatches stays: moving F2 behind F3 leaves F2 before F3, and only the later position moves.
Orders that exceed the memory limit, or in which F, B and W of a microbatch are not in order on the
rank, are rejected before they are timed, as both depend only on the order.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from pipeloom.ir.cost.cost_tables import of_kind, of_pair
from pipeloom.ir.cost.remat import OFFLOADED, RECOMPUTED
from pipeloom.ir.model.ops import CLASS_MASK, FloatArray, IntArray, OpKind

from ...core.kernels import State, fields, kind_of, lean, packed, random
from .lists import LONGEST, Filling, Lists, Remat

EDGES = 0.5  # share of the moves that are made on the critical path
CRITICAL = 0.3  # share of the other moves on the rank that decides the cost
MORE = 0.3  # the probability of each further op in a move
FOLLOWED = 12  # most ops in a move that follows a microbatch
FAR = 40  # an op is searched at most this many positions from where it was
# state of a microbatch: its activations are there, B has run, W has run, they are not there
_HERE, _BACK, _DONE, _AWAY = 1, 2, 3, 4
_F, _B, _W, _BW = map(int, (OpKind.F, OpKind.B, OpKind.W, OpKind.BW))
_O = int(OpKind.O)
AnyArray: TypeAlias = npt.NDArray[Any]


@lean
def shift(order: IntArray, source: int, target: int) -> None:
    """Move an op from ``source`` to ``target``; its class keeps the sequence of microbatches."""
    step = 1 if target > source else -1
    carried = order[source]
    at = source
    while at != target:
        passed = order[at + step]
        if passed & CLASS_MASK == carried & CLASS_MASK:
            passed, carried = carried, passed
        order[at] = passed
        at += step
    order[target] = carried


@lean
def copy_places(order: AnyArray, low: int, high: int, into: AnyArray, at: int) -> None:
    """Copy positions low..high to ``into[at:]``; assigning a slice would allocate an array."""
    for i in range(high - low + 1):
        into[at + i] = order[low + i]


@lean
def move_run(  # noqa: PLR0917
    order: IntArray,
    source: int,
    target: int,
    together: int,
    first: int,
    stop: int,  # the rank's ops are at first..stop - 1
    saved: IntArray,  # out: the ops that were at low..high
) -> tuple[int, int]:
    """Move ``together`` ops in a row from ``source`` to ``target``.

    Returns the first and last position changed, (0, -1) if the move would leave the rank or have no
    effect.
    """
    low, high = min(source, target), max(source + together - 1, target)
    if low < first or high >= stop or order[source] & CLASS_MASK == order[target] & CLASS_MASK:
        return 0, -1
    copy_places(order, low, high, saved, 0)
    for k in range(together):
        if target > source:
            shift(order, source, high)
        else:
            shift(order, source + k, target + k)
    return low, high


@lean
def several(state: State) -> int:
    """How many ops in a row to move."""
    together = 1
    while together < LONGEST and random(state) < MORE:
        together += 1
    return together


@lean
def move_along(lists: Lists, filling: Filling) -> bool:
    """Move consecutive ops of a random microbatch by the same distance; whether any was moved."""
    runs, offsets, costs, state = lists.order, lists.offsets, lists.costs, lists.state
    kind, stage, microbatch = fields(runs[int(random(state) * len(runs))])
    distance = 1 + int(lists.reach * random(state) ** 3)
    distance = distance if random(state) < 0.5 else -distance
    moved = False
    for _ in range(2 + int((FOLLOWED - 1) * random(state))):
        rank = costs.owner[stage, microbatch]
        near, first, stop = lists.place[kind, stage, microbatch], offsets[rank], offsets[rank + 1]
        at = _find(runs, packed(kind, stage, microbatch), filling.kept_source[near], first, stop)
        if at >= 0:
            low, high = move_run(runs, at, at + distance, several(state), first, stop, lists.saved)
            keeps = high >= low and keeps_rules(
                runs, first, low, high, costs.m_b, filling.nothing, costs.limit[rank], None,
                lists.done,
            )  # fmt: skip
            moved |= keeps
            if not keeps:
                copy_places(lists.saved, 0, high - low, runs, low)
        if kind == _B and stage == 0:
            break
        if kind == _F and stage == len(costs.owner) - 1:
            kind = _B
        else:
            stage += 1 if kind == _F else -1
    return moved


@lean
def _find(runs: IntArray, op: int, near: int, first: int, stop: int) -> int:
    """The position of an op, which was ``near``, among first..stop - 1; -1 if it is far away."""
    for apart in range(FAR):
        if near + apart < stop and runs[near + apart] == op:
            return near + apart
        if near - apart >= first and runs[near - apart] == op:
            return near - apart
    return -1


@lean
def make_pair(  # noqa: PLR0917
    order: IntArray, source: int, first: int, stop: int, reach: int, state: State
) -> tuple[int, int]:
    """Bring the next B, or the last one, with its W right behind an F, from ``source`` on.

    Returns the first and last position changed, or (0, -1).
    """
    at = source
    while at < stop and kind_of(order[at]) != _F:
        at += 1
    step = 1 if random(state) < 0.5 else -1
    b = at + step
    while first <= b < stop and abs(b - at) <= reach and kind_of(order[b]) != _B:
        b += step
    if at >= stop or not (first <= b < stop) or abs(b - at) > reach:
        return 0, -1
    w = b + 1
    while w < stop and order[w] != order[b] - _B + _W:
        w += 1
    if w >= stop or max(at, w) - min(at, b) > 3 * FAR:
        return 0, -1
    if b < at:  # B moves behind F, or F before B
        shift(order, at, b)
        shift(order, w, b + 2)
        return b, max(at, w)
    shift(order, b, at + 1)
    shift(order, w, at + 2)
    return at, w


@lean
def keeps_rules(  # noqa: PLR0917
    order: IntArray,
    first: int,  # position of the rank's first op
    low: int,
    high: int,  # the ops at low..high have changed
    m_b: FloatArray,
    m_w: FloatArray,
    limit: float,
    remat: Remat | None,
    done: npt.NDArray[np.int8],  # (S, M) scratch: state of each microbatch; 0 before and after
) -> bool:
    """Whether the ops of each microbatch are in order and the memory limit is kept."""
    held = 0.0
    keeps = True
    for at in range(first, high + 1):
        kind, stage, microbatch = fields(order[at])
        steps = done[stage, microbatch]
        if kind == _F:
            held += of_pair(m_b, stage, microbatch)
            done[stage, microbatch] = _HERE
            if remat is not None and remat.arrays[0][stage, microbatch] == RECOMPUTED:
                held += of_kind(remat.arrays[1], RECOMPUTED, stage, microbatch) - of_pair(
                    m_b, stage, microbatch
                )
                done[stage, microbatch] = _AWAY
            keeps = steps == 0 and (at < low or held <= limit)
        elif kind == _W:
            held -= of_pair(m_w, stage, microbatch)
            keeps = steps == _BACK
            done[stage, microbatch] = _DONE
        elif kind <= _BW:
            held -= of_pair(m_b, stage, microbatch)
            if kind == _B:
                held += of_pair(m_w, stage, microbatch)
            keeps = steps == _HERE
            done[stage, microbatch] = _BACK
        elif remat is not None:
            kept = remat.arrays[1]
            if kind == _O:
                held -= of_pair(m_b, stage, microbatch) - of_kind(
                    kept, OFFLOADED, stage, microbatch
                )
                keeps = steps == _HERE
                done[stage, microbatch] = _AWAY
            else:
                held += of_pair(m_b, stage, microbatch) - of_kind(
                    kept, remat.arrays[0][stage, microbatch], stage, microbatch
                )
                keeps = steps == _AWAY and (at < low or held <= limit)
                done[stage, microbatch] = _HERE
        if not keeps:
            break
    for at in range(first, high + 1):
        _, stage, microbatch = fields(order[at])
        done[stage, microbatch] = 0
    return keeps


@lean
def note(order: IntArray, low: int, high: int, place: IntArray) -> None:
    """Write the positions of the F's and B's among low..high to ``place``, (2, S, M)."""
    for at in range(low, high + 1):
        kind, stage, microbatch = fields(order[at])
        if kind <= _BW and kind != _W:
            place[0 if kind == _F else 1, stage, microbatch] = at


@lean
def _follows_at_once(
    order: IntArray, start: FloatArray, end: FloatArray, at: int, first: int
) -> bool:
    """Whether an op follows the previous one without a pause, with only copies between them."""
    before = at - 1
    while before >= first and kind_of(order[before]) >= _O:
        if kind_of(order[before]) == _O and start[at] <= end[before]:
            return True
        before -= 1
    return bool(before >= first and start[at] <= end[before])


@lean
def critical_blocks(  # noqa: PLR0917
    order: IntArray,
    offsets: IntArray,
    stop: IntArray,
    owner: IntArray,
    start: FloatArray,
    end: FloatArray,
    place: IntArray,
    rank: int,
    blocks: IntArray,  # (N, 2) out: first and last position of each
) -> int:
    """Find the blocks on the critical path to the last op of ``rank``, from its end; their number.

    A block is what one rank runs without a pause, from an op that waited for its input to the op
    whose output is waited for. Blocks of one op are left out.
    """
    stages, found = owner.shape[0], 0
    last = stop[rank] - 1
    while True:
        first = last
        while first > offsets[rank] and (
            start[first] <= end[first - 1]
            or _follows_at_once(order, start, end, first, offsets[rank])
        ):
            first -= 1
        if first < last:
            blocks[found, 0], blocks[found, 1] = first, last
            found += 1
        kind, stage, microbatch = fields(order[first])
        if kind > _BW or kind == _W or (kind == _F and stage == 0):
            return found
        if kind == _F:
            last = place[0, stage - 1, microbatch]
            rank = owner[stage - 1, microbatch]
        elif stage == stages - 1:
            return found
        else:
            last = place[1, stage + 1, microbatch]
            rank = owner[stage + 1, microbatch]


@lean
def at_an_edge(blocks: IntArray, number: int, reach: int, state: State) -> tuple[int, int]:
    """A move on the critical path: an op goes before its block's first or behind its last.

    Returns the op's position and its new one.
    """
    block = int(random(state) * number)
    first, last = blocks[block]
    distance = 1 + int(min(reach, last - first) * random(state) ** 3)
    if random(state) < 0.5:
        return min(last, first + distance), first
    return max(first, last - distance), last


@lean
def rank_of(offsets: IntArray, place: int) -> int:
    return int(np.searchsorted(offsets, place, side="right")) - 1


@lean
def anywhere(first: int, length: int, reach: int, state: State) -> tuple[int, int]:
    """A random op and its new position, short distances being likelier than long ones."""
    source = first + int(random(state) * length)
    distance = 1 + int(reach * random(state) ** 3)
    return source, source + distance if random(state) < 0.5 else source - distance


@lean
def cost_of(
    offsets: IntArray,  # (P + 1,) start of each rank's ops
    stop: IntArray,  # (P,) end of each rank's ops
    start: FloatArray,
    end: FloatArray,
    makespan: bool,
) -> tuple[float, float, int]:
    """The cost, the value by which orders are compared, and the rank that decides the cost.

    The value adds a tenth of the mean span, which distinguishes the many orders of equal cost.
    """
    span, total, last, opens = 0.0, 0.0, 0.0, np.inf
    longest = latest = 0
    for r in range(len(stop)):
        if stop[r] > offsets[r]:
            begins, ends = start[offsets[r]], end[stop[r] - 1]
            total += ends - begins
            opens = min(opens, begins)
            if ends > last:
                last, latest = ends, r
            if ends - begins > span:
                span, longest = ends - begins, r
    cost = last - opens if makespan else span
    return cost, cost + 0.1 * total / len(stop), latest if makespan else longest
