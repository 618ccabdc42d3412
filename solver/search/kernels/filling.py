"""Simulated annealing of the orders of only F's and B's; W's fill the time between them.

If memory is small, hardly any op can be moved by itself: an F that comes earlier needs the memory
that a later W releases. So a rank's list here has only its F's and B's, and W's are inserted while
all ranks are simulated forward in time: a rank runs the W that has waited longest if the next F
lacks memory, or the next input is late enough.

The moves are those of :mod:`.moves` on these lists. Others follow a microbatch from rank to rank
and move several of its ops by the same distance.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipeloom.ir.cost.cost_tables import of_kind, of_pair
from pipeloom.ir.kernels import kernel
from pipeloom.ir.model.ops import FloatArray, IntArray, OpKind

from ...core.kernels import CostArrays, State, earliest, fields, kind_of, packed, random
from .moves import (
    EDGES,
    LONGEST,
    anywhere,
    at_an_edge,
    copy_places,
    cost_of,
    critical_blocks,
    keeps_rules,
    move_run,
    note,
    rank_of,
)

_F, _B, _W = map(int, (OpKind.F, OpKind.B, OpKind.W))
FILLS = 0.05  # share of the moves that change `fill` of a rank
ROUTES = 0.3  # share of the moves that follow a microbatch
FOLLOWED = 12  # most ops in such a move
FAR = 40  # an op is searched at most this many positions from where it was


@kernel
def fill_weights(  # noqa: PLR0917
    runs: IntArray,  # (2 N,) packed F's and B's, rank after rank
    offsets: IntArray,  # (P + 1,) start of each rank's
    costs: CostArrays,
    fill: FloatArray,  # (P,) a W runs if the next input is this many T_W away
    order: IntArray,  # (3 N,) out: with W's
    start: FloatArray,  # (3 N,) out
    end: FloatArray,  # (3 N,) out
    source: IntArray,  # (3 N,) out: index in `runs` of the op or, for a W, of the next one
    f_end: FloatArray,  # (S, M) scratch
    b_end: FloatArray,  # (S, M) scratch
    queue: IntArray,  # (N,) scratch
    by_rank: FloatArray,  # (3, P) scratch
    places: IntArray,  # (4, P) scratch
) -> bool:
    """Insert the W's between the other ops and time all; False if some op can never start."""
    durations, owner, into_f, into_b, m_b, m_w, limit = costs
    ranks, stages = len(limit), len(owner)
    f_end[:], b_end[:] = np.inf, np.inf
    clock, free, held = by_rank[0], by_rank[1], by_rank[2]
    position, at, oldest, newest = places[0], places[1], places[2], places[3]
    for r in range(ranks):
        clock[r], free[r], held[r] = 0.0, 0.0, 0.0
        position[r], at[r] = offsets[r], 3 * offsets[r] // 2
        oldest[r] = newest[r] = offsets[r] // 2
    left = len(order)
    while left > 0:
        r = earliest(clock)
        now = clock[r]
        if now == np.inf:
            return False
        op = weight = -1
        takes = 0.0
        if oldest[r] < newest[r]:
            weight = queue[oldest[r]]
            _, stage, microbatch = fields(weight)
            takes = of_kind(durations, _W, stage, microbatch)
        if position[r] < offsets[r + 1]:
            op = runs[position[r]]
            kind, stage, microbatch = fields(op)
            full = False
            if kind == _F:
                came = 0.0
                if stage > 0:
                    came = f_end[stage - 1, microbatch] + into_f[stage, microbatch]
                full = held[r] + of_pair(m_b, stage, microbatch) > limit[r]
            elif stage == stages - 1:
                came = f_end[stage, microbatch]
            else:
                came = b_end[stage + 1, microbatch] + into_b[stage, microbatch]
            if full or came > now:
                if weight >= 0 and (full or came - now >= fill[r] * takes):
                    op = -1
                elif full:
                    return False
                else:
                    clock[r] = came
                    continue
        elif weight < 0:
            clock[r] = np.inf
            continue
        source[at[r]] = position[r]
        if op < 0:
            op = weight
            oldest[r] += 1
        else:
            position[r] += 1
        kind, stage, microbatch = fields(op)
        order[at[r]], start[at[r]] = op, now
        wakes, arrival = -1, np.inf
        if kind == _F:
            ends = now + of_kind(durations, _F, stage, microbatch)
            f_end[stage, microbatch] = ends
            held[r] += of_pair(m_b, stage, microbatch)
            if stage + 1 < stages:
                wakes = owner[stage + 1, microbatch]
                arrival = ends + into_f[stage + 1, microbatch]
        elif kind == _B:
            ends = now + of_kind(durations, _B, stage, microbatch)
            b_end[stage, microbatch] = ends
            held[r] += of_pair(m_w, stage, microbatch) - of_pair(m_b, stage, microbatch)
            queue[newest[r]] = op - _B + _W
            newest[r] += 1
            if stage > 0:
                wakes = owner[stage - 1, microbatch]
                arrival = ends + into_b[stage - 1, microbatch]
        else:
            ends = now + takes
            held[r] -= of_pair(m_w, stage, microbatch)
        end[at[r]] = free[r] = clock[r] = ends
        at[r] += 1
        if wakes >= 0 and wakes != r:
            clock[wakes] = min(clock[wakes], max(arrival, free[wakes]))
        left -= 1
    return True


@kernel
def _move(  # noqa: PLR0917
    runs: IntArray,
    at: int,
    target: int,
    rank: int,
    offsets: IntArray,
    m_b: FloatArray,
    none: FloatArray,
    limit: FloatArray,
    done: npt.NDArray[np.int8],
    saved: IntArray,
    state: State,
) -> bool:
    """Move an op of a rank, or several; False, with nothing changed, if a rule forbids it."""
    first = offsets[rank]
    low, high = move_run(runs, at, target, first, offsets[rank + 1], saved, state)
    if high < low:
        return False
    if keeps_rules(runs, first, low, high, m_b, none, limit[rank], None, done):
        return True
    copy_places(saved, 0, high - low, runs, low)
    return False


@kernel
def _find(runs: IntArray, op: int, near: int, first: int, stop: int) -> int:
    """The position of an op, which was ``near``, among first..stop - 1; -1 if it is far away."""
    for apart in range(FAR):
        if near + apart < stop and runs[near + apart] == op:
            return near + apart
        if near - apart >= first and runs[near - apart] == op:
            return near - apart
    return -1


@kernel
def _move_along(  # noqa: PLR0917
    runs: IntArray,
    offsets: IntArray,
    owner: IntArray,
    m_b: FloatArray,
    none: FloatArray,
    limit: FloatArray,
    place: IntArray,
    source: IntArray,
    reach: int,
    done: npt.NDArray[np.int8],
    saved: IntArray,
    state: State,
) -> bool:
    """Move consecutive ops of a random microbatch by the same distance; whether any was moved."""
    stages, moved = owner.shape[0], False
    kind, stage, microbatch = fields(runs[int(random(state) * len(runs))])
    distance = 1 + int(reach * random(state) ** 3)
    distance = distance if random(state) < 0.5 else -distance
    for _ in range(2 + int((FOLLOWED - 1) * random(state))):
        rank = owner[stage, microbatch]
        near = source[place[kind, stage, microbatch]]
        at = _find(runs, packed(kind, stage, microbatch), near, offsets[rank], offsets[rank + 1])
        moved |= at >= 0 and _move(
            runs, at, at + distance, rank, offsets, m_b, none, limit, done, saved, state
        )
        if kind == _F and stage + 1 < stages:
            stage += 1
        elif kind == _F:
            kind = _B
        elif stage > 0:
            stage -= 1
        else:
            break
    return moved


@kernel
def anneal_filled(  # noqa: PLR0917
    runs: IntArray,  # (2 N,) changed in place
    best: IntArray,  # (3 N,) out: the best order found, if it costs less than best_cost
    best_cost: float,
    offsets: IntArray,
    costs: CostArrays,
    fill: FloatArray,  # (P,) changed in place
    makespan: bool,
    hot: float,
    cold: float,
    moves: int,
    reach: int,
    state: State,
    stopped: npt.NDArray[np.bool_],
) -> float:
    """Simulated annealing with ``moves`` moves; returns the cost of ``best``."""
    owner, m_b, limit = costs.owner, costs.m_b, costs.limit
    ranks, size = len(limit), 3 * len(runs) // 2
    order, source = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
    start, end = np.empty(size), np.empty(size)
    f_end, b_end = np.empty(owner.shape), np.empty(owner.shape)
    queue = np.empty(size // 3, dtype=np.int64)
    by_rank, places = np.empty((3, ranks)), np.empty((4, ranks), dtype=np.int64)
    done = np.zeros(owner.shape, dtype=np.int8)
    none = np.zeros_like(costs.m_w)  # treats M_W as 0: W's release it before the next F if needed
    saved = np.empty(reach + LONGEST, dtype=np.int64)
    kept, kept_source = runs.copy(), source.copy()
    place = np.empty((2, *owner.shape), dtype=np.int64)
    blocks, edges = np.empty((size, 2), dtype=np.int64), np.empty((size, 2), dtype=np.int64)
    whole = 3 * offsets // 2
    stop = whole[1:]
    cooling = (cold / hot) ** (1.0 / max(moves, 1))
    temperature, current = hot, np.inf
    critical = number = 0
    for move in range(-1, moves):
        if stopped[0]:
            break
        changed, was = -1, 0.0
        if move >= 0:
            temperature *= cooling
            way = random(state)
            if way < FILLS:
                changed = int(random(state) * ranks)
                was = fill[changed]
                fill[changed] = 1.2 * random(state)
            elif way < FILLS + ROUTES and current < np.inf:
                if not _move_along(
                    runs, offsets, owner, m_b, none, limit, place, kept_source, reach, done,
                    saved, state,
                ):  # fmt: skip
                    continue
            else:
                if number > 0 and random(state) < EDGES:
                    at, target = at_an_edge(edges, number, reach, state)
                    rank = rank_of(offsets, at)
                else:
                    rank = critical if random(state) < 0.3 else int(random(state) * ranks)
                    length = offsets[rank + 1] - offsets[rank]
                    if length < 2:
                        continue
                    at, target = anywhere(offsets[rank], length, reach, state)
                if not _move(runs, at, target, rank, offsets, m_b, none, limit, done, saved, state):
                    continue
        fits = fill_weights(
            runs, offsets, costs, fill, order, start, end, source, f_end, b_end, queue, by_rank,
            places,
        )  # fmt: skip
        cost, value, longest = np.inf, np.inf, 0
        if fits:
            cost, value, longest = cost_of(whole, stop, start, end, makespan)
        if move < 0 or value <= current - temperature * np.log(1.0 - random(state)):
            current = value
            critical = longest
            copy_places(runs, 0, len(runs) - 1, kept, 0)
            if fits:
                copy_places(source, 0, size - 1, kept_source, 0)
                note(order, 0, size - 1, place)
                found = critical_blocks(
                    order, whole, stop, owner, start, end, place, longest, blocks
                )
                number = 0
                for k in range(found):
                    edges[number, 0] = source[blocks[k, 0]]
                    after = source[blocks[k, 1]]
                    edges[number, 1] = after - int(kind_of(order[blocks[k, 1]]) == _W)
                    number += int(edges[number, 0] < edges[number, 1])
            if cost < best_cost:
                best_cost = cost
                copy_places(order, 0, size - 1, best, 0)
        elif changed >= 0:
            fill[changed] = was
        else:
            copy_places(kept, 0, len(runs) - 1, runs, 0)
    return best_cost
