"""Moves of the local search on orders of ops.

A move takes one op of a rank, or several consecutive ones, and puts it a few positions earlier or
later. Half of the moves are made on the critical path to the last op of the rank that decides the
cost, like the job-shop neighborhood of Nowicki and Smutnicki (1996). There, an op leaves its
*block* (the consecutive ops that a rank runs without a pause): it goes before the block's first op
or behind its last. Other moves follow a microbatch from rank to rank, or make a pair (an F and a BW
that run at the same time).

If an op passes an op of the same kind and stage, the two exchange microbatches, so that the
microbatches of each kind and stage stay in the same sequence: moving F2 behind F3 leaves F2 before
F3, and changes only the position of the second one. Two kinds of orders are rejected before they
are timed, as both faults depend only on the order: those that exceed the memory limit, and those in
which F, B and W of a microbatch are not in this order on a rank.
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
CRITICAL = 0.3  # share of the other moves that are made on the rank that decides the cost
MORE = 0.3  # the probability of each further op in a move
FOLLOWED = 12  # maximum number of ops in a move that follows a microbatch
FAR = 40  # an op is searched at most this many positions from where it was
# state of a microbatch on a stage: its activations are held, its B has run, its W has run, its
# activations are released until an R or L
_HERE, _BACK, _DONE, _AWAY = 1, 2, 3, 4
_F, _B, _W, _BW = map(int, (OpKind.F, OpKind.B, OpKind.W, OpKind.BW))
_O = int(OpKind.O)
AnyArray: TypeAlias = npt.NDArray[Any]


@lean
def shift(order: IntArray, source: int, target: int) -> None:
    """Move an op of ``order`` from position ``source`` to ``target``, and shift those in between.

    If the op passes another op of the same kind and stage, the two exchange microbatches, so that
    the ops of this kind and stage still run the microbatches in the same sequence.
    """
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
    """Copy ``order[low]`` to ``order[high]`` into ``into``, from position ``at`` on.

    Assigning a slice instead would allocate an array.
    """
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
    """Move the ``together`` consecutive ops of a rank that begin at position ``source``.

    If ``target`` is before ``source``, they then begin at ``target``; otherwise, they end there.
    Returns the first and the last position changed. If an op would leave the rank's part of the
    order, or the move would have no effect, the order stays as it was, and (0, -1) is returned.
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
    """Draw how many consecutive ops to move, from 1 to :data:`LONGEST`."""
    together = 1
    while together < LONGEST and random(state) < MORE:
        together += 1
    return together


@lean
def move_along(lists: Lists, filling: Filling) -> bool:
    """Move ops of a random microbatch by the same random distance, each on its own rank.

    The ops are a random F or B and some that follow it on the microbatch's way through the stages;
    other ops next to each of them may move along. A move that would make the order of a rank
    invalid is undone. Returns whether any op has moved.
    """
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
    """Return the position of ``op`` among ``runs[first]`` to ``runs[stop - 1]``, or -1.

    The search goes outward from position ``near``. If ``op`` is not among the nearest :data:`FAR`
    positions on each side, -1 is returned.
    """
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
    """Move a B and its W right behind an F, so that the three can run as a pair.

    The F is the first one at or after position ``source``. The B is the nearest one on a side of it
    that is chosen at random, at most ``reach`` positions away. The rank's ops are at positions
    ``first`` to ``stop - 1``. Returns the first and the last position changed, or (0, -1) if there
    are no such ops.
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
    """Return whether a rank's changed order is valid.

    It is valid if each microbatch runs its ops on each stage in a possible sequence (such as F
    before B before W), and the rank keeps its memory limit. ``low``, ``high``: the changed
    positions. The sequence is checked from the rank's first op to ``high``, memory from ``low`` to
    ``high``.
    """
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
    """Record in ``place`` where the F's and backwards at positions ``low`` to ``high`` are.

    ``place``: positions in ``order`` by kind (0 for F, 1 for B or BW), stage and microbatch, (2, S,
    M).
    """
    for at in range(low, high + 1):
        kind, stage, microbatch = fields(order[at])
        if kind <= _BW and kind != _W:
            place[0 if kind == _F else 1, stage, microbatch] = at


@lean
def _follows_at_once(
    order: IntArray, start: FloatArray, end: FloatArray, at: int, first: int
) -> bool:
    """Return whether the op at position ``at`` starts when the previous op of its rank ends.

    The previous op is the last one before ``at`` that is no O or L, as copies run at the same time
    as other ops. But the result is also True if the op starts when an O between the two ends.
    ``first``: position of the rank's first op.
    """
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
    """Write the blocks on the critical path to the last op of ``rank``, and return their number.

    A *block* is a sequence of ops that one rank runs without a pause. It begins with an op that
    waited for its input, and ends with the op whose output the next block, on another rank, waited
    for. The path is followed backwards in time, so the last block comes first. Blocks of a single
    op are left out.
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
    """Draw a move on the critical path: an op goes before its block's first op or behind its last.

    ``blocks``: the first and the last position of each block; only the first ``number`` of its rows
    are used. ``reach``: the maximum distance of the move. Returns the present position of the op
    and its new one.
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
    """Draw one of the ``length`` ops that begin at position ``first``, and a new position for it.

    Returns both positions. They differ by at most ``reach``, and small distances are likelier than
    large ones; the new position may be outside the rank's ops.
    """
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
    """Return the cost of an order, the value for comparing it, and the rank that decides the cost.

    Annealing compares the value, not the cost. The value is the cost plus a tenth of the ranks'
    mean span (time from first start to last end), so that it distinguishes the many orders of equal
    cost. ``makespan``: whether the cost is the makespan; otherwise it is the period.
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
