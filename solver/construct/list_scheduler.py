"""The list scheduler: it simulates all ranks forward in time, and orders ops as it goes.

If there are two copies of the weights, they are treated as twice as many stages: first those that
the microbatches of one direction pass, then those of the other direction. *Stage* here means one of
these.

A free rank runs the F or B with the lowest key among those whose input has arrived. The key is the
microbatch's place in the order of entry plus an offset of the stage and kind. An F must fit in
memory, and leave some memory for the F's of later stages on its rank. A W runs if an F lacks
memory, if more than ``defer`` W's wait, or if the next input arrives late enough. A first stage may
let some time pass between two F's: if memory is small, that spacing decides where microbatches on
their way to the last stage meet those on their way back. Every stage runs its F's, B's and W's in
the order of entry, which is a parameter, too, if microbatches are unlike.

With one stage per rank, unlike microbatches may overtake each other: instead of its place, each
microbatch has one key for its F's and one for its B's, and a rank chooses among all whose input has
arrived.

Recomputation, for one stage per rank: an F may run even though its M_B does not fit, if its
microbatch is to be recomputed. The R runs before the B, at the earliest ``lead`` before the input
of the B arrives. On each stage, only one recomputed microbatch at a time waits for its B. Memory
for it is reserved, as otherwise no recomputed microbatch could run its B. A microbatch that keeps
its activations overtakes those that wait to be recomputed. It may also use the reserved memory,
because its own B releases it again. So a rank may fill its memory with microbatches that keep their
activations while others are on their way to the last stage, and recompute the others afterwards.

The best parameters depend on the placement and on memory, so they are drawn at random and improved
by simulated annealing: :func:`tune_list`.

Branches on the number of axes of the table, and on whether an argument is None, are decided when a
kernel is compiled. The kernels take their arrays out of their tuples and inline their parts, which
makes them twice as fast.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pipeloom.ir.cost.cost_tables import of_kind
from pipeloom.ir.kernels import kernel
from pipeloom.ir.model.ops import FloatArray, IntArray, OpKind

from ..core.kernels import State, earliest, inlined, lean, normal, packed, random
from ..core.options import Order
from .list_parameters import (
    AGAIN,
    AHEAD,
    BESIDE,
    DEFER,
    EVER,
    FILL,
    GAP,
    INTO_F,
    KEEP,
    KEY_B,
    KEY_F,
    LEAD,
    M_B,
    M_W,
    PATIENCE,
    RESERVE,
    STAY,
    ListParameters,
    Moves,
    Stages,
)

_F, _B, _W, _R = map(int, (OpKind.F, OpKind.B, OpKind.W, OpKind.R))
_KINDS = (_B, _F, _R)
UNEVEN = 0.5  # weight of the 4-norm of the ranks' idle times, added to the cost

_STAYS, _FILLS, _GONE = range(1, 4)
"""The fate of a microbatch on a stage: it keeps its activations, it keeps them in memory that is
reserved for an R, or it is to be recomputed."""
# rows of `counts` below those by kind: the number of microbatches of each fate between F and B, and
# whether (0 or 1) a microbatch waits between its R and its B
_STAYING, _FILLING, _AWAY, _BACK = range(5, 9)


class ListRun(NamedTuple):
    """The arrays that the scheduler writes, for P ranks, S stages and M microbatches.

    Outputs:

    - ``order``: the packed ops. The part of a rank has room for 3 M ops per stage, 4 M with
      recomputation.
    - ``number``: the number of ops of each rank, (P,).
    - ``spans``: the time from the first start to the last end of each rank, (P,).

    State (a *place* is a microbatch's position in the order of entry):

    - ``arrivals``: when the input of an op arrives, by kind, stage and place, (5, S, M + 1);
      infinite if that is not known or, where microbatches overtake each other, if the op has run.
    - ``counts``: the number of ops run, by kind, then of microbatches, by fate, (9, S).
    - ``late``: the places in the order in which their B's have run, (S, M).
    - ``fates``: the fate of each place, (S, M).
    - ``clock``: when each rank decides next, infinite until an input wakes it, (P,).
    - ``free``: when each rank's last op ends, (P,).
    - ``first``: when each rank's first op started, or -1, (P,).
    - ``held``: the memory that each rank holds, (P,).
    """

    order: IntArray
    number: IntArray
    spans: FloatArray
    arrivals: FloatArray
    counts: IntArray
    late: IntArray
    fates: npt.NDArray[np.int8]
    clock: FloatArray
    free: FloatArray
    first: FloatArray
    held: FloatArray

    @classmethod
    def of(cls, stages: Stages, ops: int = 3) -> ListRun:
        """Allocate the arrays for the given stages.

        ``ops``: the number of ops per microbatch and stage: 3, or 4 with recomputation.
        """
        size, ranks, microbatches = len(stages.owner), len(stages.limit), stages.names.shape[1]
        return cls(
            np.empty(ops * size * microbatches, dtype=np.int64),
            np.empty(ranks, dtype=np.int64),
            np.empty(ranks),
            np.empty((5, size, microbatches + 1)),
            np.empty((_BACK + 1, size), dtype=np.int64),
            np.zeros((size, microbatches), dtype=np.int64),  # valid even where no W waits
            np.empty((size, microbatches), dtype=np.int8),
            *np.empty((4, ranks)),
        )

    def rows(self, stages: Stages) -> Order:
        """Return the order as one array of packed ops per rank.

        ``stages``: the stages for which the order was built.
        """
        starts = len(self.order) // len(stages.owner) * stages.offsets
        parts = zip(starts.tolist(), self.number.tolist(), strict=False)
        return tuple(self.order[at : at + n].copy() for at, n in parts)


@lean
def list_schedule(  # noqa: PLR0917
    stages: Stages,
    parameters: ListParameters,
    rest: FloatArray | None,  # (S,) the memory that an R takes; None: nothing is recomputed
    keys: FloatArray | None,  # (2, M) of `parameters`; None: microbatches never overtake others
    makespan: bool,
    run: ListRun,
) -> float:
    """Build an order with the list scheduler, write it to ``run``, and return its cost.

    ``rest``: the memory that an R restores on each stage, (S,); None without recomputation.
    ``keys``: the keys of microbatches for F's and B's, (2, M), if they may overtake each other;
    else None. ``makespan``: whether the cost is the makespan; otherwise it is the period. The cost
    is infinite if the order is incomplete for lack of memory.
    """
    table, owner, own, offsets, limit, names = stages[:6]
    theta, gap, entry, stay, _ = parameters
    order, number, spans, arrivals, counts, late, fates, clock, free, first, held = run
    depth, microbatches = len(owner) // len(names), names.shape[1]
    in_turn = keys is None or rest is not None  # whether microbatches enter in the order of entry
    arrivals[:], clock[:], first[:] = np.inf, np.inf, -1.0
    number[:], counts[:], free[:], held[:] = 0, 0, 0.0, 0.0
    arrivals[_F, ::depth, : 1 if in_turn else microbatches] = 0.0
    for s in range(0, len(owner), depth):
        clock[owner[s]] = 0.0
    each, left = len(order) // len(owner), 3 * len(owner) * microbatches
    while left > 0:
        r = earliest(clock)
        now = clock[r]
        if now == np.inf:
            return np.inf
        kind, s, place, comes = _choose(
            table, own, offsets, limit, theta, entry, stay, rest, keys, counts, late, arrivals, r,
            now, held[r],
        )  # fmt: skip
        if kind < 0:
            clock[r] = comes
            continue
        j, stream = entry[place], int(s >= depth)
        stage = s - stream * depth
        order[offsets[r] * each + number[r]] = packed(kind, stage, names[stream, j])
        number[r] += 1
        first[r] = now if first[r] < 0.0 else first[r]
        free[r] = clock[r] = end = now + of_kind(table, kind, s, j)
        if rest is not None:
            fate = _fate(kind, s, place, held[r], limit[r], table, theta, entry, stay, rest, counts)
            held[r] += _with_remat(
                kind, s, place, fate, end, table, theta, rest, counts, fates, arrivals
            )
        if keys is not None:
            arrivals[kind, s, place] = np.inf
            if kind == _B:
                late[s, counts[_B, s]] = place
        if in_turn and kind == _F and stage == 0 and place + 1 < microbatches:
            arrivals[_F, s, place + 1] = now + gap[stream * microbatches + place + 1]
        held[r] += _held(table, kind, s, j)
        counts[kind, s] += 1
        there, row = _next(kind, s, stage, depth)
        if row >= 0:
            to, comes = owner[there], end + of_kind(table, INTO_F + row, there, j)
            if rest is not None and row == _B and fates[there, place] == _GONE:
                row, comes = _R, comes - theta[LEAD, there] * table[_R, there]
            arrivals[row, there, place] = comes
            clock[to] = min(clock[to], max(now, comes, free[to]))
        left -= int(kind != _R)
    cost = 0.0
    for r in range(len(free)):
        spans[r] = free[r] - max(first[r], 0.0)
        cost = max(cost, free[r] if makespan else spans[r])
    return cost


@inlined
def _choose(  # noqa: PLR0917
    table: FloatArray,
    own: IntArray,
    offsets: IntArray,
    limit: FloatArray,
    theta: FloatArray,
    entry: IntArray,
    stay: npt.NDArray[np.int8],
    rest: FloatArray | None,
    keys: FloatArray | None,
    counts: IntArray,
    late: IntArray,
    arrivals: FloatArray,
    r: int,
    now: float,
    held: float,
) -> tuple[int, int, int, float]:
    """Choose the op that rank ``r``, which holds memory ``held``, runs at time ``now``.

    Returns the op's kind, its stage, its microbatch's place in the order of entry, and the time at
    which the rank's next input arrives (infinite if unknown). The kind is -1 if the rank runs no op
    now.
    """
    best, best_kind, best_stage, best_place, full = np.inf, -1, -1, 0, False
    soon, comes = np.inf, np.inf  # lowest key of an op worth waiting for; time of the next input
    for at in range(offsets[r], offsets[r + 1]):
        s = own[at]
        for n in range(2 if rest is None else 3):
            kind = _KINDS[n]
            ahead = kind == _F and counts[_F, s] - counts[_B, s] >= theta[AHEAD, s]
            if ahead or (kind == _R and counts[_BACK, s] > 0):
                continue
            first, last = counts[kind, s], counts[kind, s] + 1
            if keys is not None:
                first, last = 0, arrivals.shape[2] - 1
            for place in range(first, last):
                came = arrivals[kind, s, place]
                if came == np.inf:
                    continue
                j, row = entry[place], int(kind != _F)
                key = theta[KEY_F + row, s] + (place if keys is None else keys[row, j])
                key += 0.5 * int(kind == _R)
                fate = _fate(
                    kind, s, place, held, limit[r], table, theta, entry, stay, rest, counts
                )
                if fate == 0:
                    full = full or came <= now
                elif came > now:
                    comes = min(comes, came)
                    if came <= now + theta[PATIENCE, s] * of_kind(table, _F, s, j):
                        soon = min(soon, key)
                elif key < best:
                    best, best_kind, best_stage, best_place = key, kind, s, place
    waiting, s = _waiting(own, offsets, theta, counts, r)
    place = min(counts[_W, s], len(entry) - 1)
    place = place if keys is None else late[s, place]
    # read here, as numba would count the references to an array that only some branches read
    most, fills = theta[DEFER, s], now + theta[FILL, s] * of_kind(table, _W, s, entry[place])
    if waiting > 0 and best_kind <= _F and (full or waiting > most):
        best_kind, best_stage, best_place = _W, s, place
    elif best_kind < 0 or best > soon:
        best_kind, best_stage, best_place = _W if waiting > 0 and comes >= fills else -1, s, place
    return best_kind, best_stage, best_place, comes


@inlined
def _waiting(
    own: IntArray, offsets: IntArray, theta: FloatArray, counts: IntArray, r: int
) -> tuple[int, int]:
    """Return the number of W's that wait on rank ``r``, and the stage whose W is to run first."""
    waiting, stage, least = 0, own[offsets[r]], np.inf
    for at in range(offsets[r], offsets[r + 1]):
        s = own[at]
        pending, key = counts[_B, s] - counts[_W, s], counts[_W, s] + theta[KEY_B, s]
        waiting += pending
        if pending > 0 and key < least:
            stage, least = s, key
    return waiting, stage


@inlined
def _fate(  # noqa: PLR0917
    kind: int,
    s: int,
    place: int,
    held: float,
    limit: float,
    table: FloatArray,
    theta: FloatArray,
    entry: IntArray,
    stay: npt.NDArray[np.int8],
    rest: FloatArray | None,
    counts: IntArray,
) -> int:
    """Decide whether an op may run now and, if it is an F, the fate of its microbatch.

    Returns the fate, ``_STAYS``, ``_FILLS`` or ``_GONE``, or 0 if the op may not run: it does not
    fit in memory, or more microbatches would wait for their R than the parameters allow. ``kind``,
    ``s``, ``place``: the op's kind, its stage, and its microbatch's place in the order of entry.
    ``held``, ``limit``: the memory that its rank holds, and the rank's limit. ``rest``: as for
    :func:`list_schedule`.
    """
    fate, after, reserve = _STAYS, held + of_kind(table, M_B, s, entry[place]), theta[RESERVE, s]
    if rest is None:
        fate = _STAYS if kind != _F or after <= limit - reserve else 0
    else:
        able, may = table[_R, s] < np.inf, stay[s, place]
        reserve = rest[s] if able and counts[_BACK, s] == 0 and counts[_FILLING, s] == 0 else 0.0
        beside = after + reserve <= limit
        keeps = counts[_STAYING, s] + counts[_FILLING, s] < theta[KEEP, s]
        keeps = keeps and (may == EVER or (may == BESIDE and beside))
        goes = counts[_AWAY, s] < theta[AGAIN, s] and after - rest[s] + reserve <= limit
        if kind == _R:
            fate = _GONE if held + rest[s] <= limit else 0
        elif kind == _F and after <= limit and (keeps or not able):
            fate = _STAYS if beside else _FILLS
        elif kind == _F:
            fate = _GONE if able and goes else 0
    return fate


@inlined
def _with_remat(  # noqa: PLR0917
    kind: int,
    s: int,
    place: int,
    fate: int,  # result of `_fate`; used only if the op is an F
    end: float,
    table: FloatArray,
    theta: FloatArray,
    rest: FloatArray,
    counts: IntArray,
    fates: npt.NDArray[np.int8],
    arrivals: FloatArray,
) -> float:
    """Record that an op starts, if recomputation is possible.

    Returns the correction to the result of :func:`_held`, which ignores recomputation: the sum of
    both is the op's change of memory.
    """
    if kind == _F:
        fates[s, place] = fate
    gone = fates[s, place] == _GONE
    if kind in (_F, _B):
        counts[_STAYING - 1 + fates[s, place], s] += 1 if kind == _F else -1
    if gone and kind in (_R, _B):
        counts[_BACK, s] = int(kind == _R)
    if kind == _R:
        comes = arrivals[_R, s, place] + theta[LEAD, s] * table[_R, s]
        arrivals[_B, s, place] = max(end, comes)
    return float(rest[s] if kind == _R else -rest[s] if kind == _F and gone else 0.0)


@inlined
def _held(table: FloatArray, kind: int, s: int, j: int) -> float:
    """Return by how much an op raises the memory that its rank holds, without recomputation.

    The result is negative if the op releases memory. ``kind``, ``s``, ``j``: the op's kind, stage
    and microbatch.
    """
    m_b, m_w = of_kind(table, M_B, s, j), of_kind(table, M_W, s, j)
    return m_b if kind == _F else m_w - m_b if kind == _B else -m_w if kind == _W else 0.0


@inlined
def _next(kind: int, s: int, stage: int, depth: int) -> tuple[int, int]:
    """Return the stage and the kind of the op whose input is the output of a given op.

    The kind is -1 if there is none. ``kind``, ``s``: the kind and stage of the given op. ``stage``:
    the number of this stage within its direction, which has ``depth`` stages. No array is passed,
    because numba would count references to an array that only some branches use.
    """
    if kind == _F:
        return (s + 1, _F) if stage + 1 < depth else (s, _B)
    return s - 1, _B if kind == _B and stage > 0 else -1


@kernel
def tune_list(  # noqa: PLR0917
    stages: Stages,
    parameters: ListParameters,  # changed in place
    rest: FloatArray | None,
    keys: FloatArray | None,
    changes: Moves,
    makespan: bool,
    best: ListRun,  # its order is the best found, if it costs less than best_cost
    best_cost: float,
    hot: float,  # temperature of the first move, in units of cost
    cold: float,  # temperature of the last move
    moves: int,
    run: ListRun,
    state: State,  # changed in place
    stopped: npt.NDArray[np.bool_],  # (1,), ends the search when set
) -> tuple[float, float]:
    """Improve the parameters of the list scheduler by simulated annealing with ``moves`` moves.

    Returns the cost of the order in ``best`` (``best_cost`` if no cheaper one was found), and the
    cost of the order that the final ``parameters`` give. ``rest``, ``keys``, ``makespan``: as for
    :func:`list_schedule`. ``run``: arrays in which orders are built.
    """
    theta, gap, entry, stay, key = parameters
    old_theta, old_gap, old_entry, old_stay = theta.copy(), gap.copy(), entry.copy(), stay.copy()
    old_key = key.copy()
    cooling = (cold / hot) ** (1.0 / max(moves, 1))
    temperature, current, current_cost = hot, np.inf, np.inf
    for move in range(-1, moves):
        if stopped[0]:
            break
        temperature *= cooling
        if move >= 0:
            for _ in range(1 + int(2 * random(state))):
                _change_one(stages, parameters, keys, changes, state)
        cost = list_schedule(stages, parameters, rest, keys, makespan, run)
        value = cost + UNEVEN * ((run.spans - stages.work) ** 4).mean() ** 0.25
        if move < 0 or value <= current - temperature * np.log(1.0 - random(state)):
            current, current_cost = value, cost
            if cost < best_cost:
                best_cost = cost
                best.order[:], best.number[:] = run.order, run.number
            old_theta[:], old_gap[:], old_entry[:], old_stay[:] = theta, gap, entry, stay
            old_key[:] = key
        else:
            theta[:], gap[:], entry[:], stay[:] = old_theta, old_gap, old_entry, old_stay
            key[:] = old_key
    return best_cost, current_cost


@lean
def _change_one(
    stages: Stages, parameters: ListParameters, keys: FloatArray | None, moves: Moves, state: State
) -> None:
    """Make a random change to the parameters.

    One of the following changes: a row of ``theta``, or ``stay`` of one microbatch, on some stages
    that have the same index among the stages of their ranks; or the gaps between F's; or the order
    of the microbatches (``keys`` if these are given, else the order of entry).
    """
    theta, gap, entry, stay, _ = parameters
    if (stages.table.ndim == 3 or keys is not None) and random(state) < moves.reordered:
        if keys is None:
            _change_entry(entry, state)
        else:
            _change_keys(keys, state)
        return
    chance, row = random(state), 0
    while row < GAP and chance >= moves.chances[row]:
        row += 1
    if row == GAP:
        _change_gaps(gap, moves.unit, moves.period, state)
        return
    number, microbatches = stay.shape
    s, reach = int(random(state) * number), random(state)
    first = s if reach < 0.6 else 0
    last = s + 1 if reach < 0.4 or 0.6 <= reach < 0.8 else number
    by = normal(state) * (2.0 if random(state) < 0.3 else 0.4)
    if row < STAY and moves.whole[row]:
        by = (1.0 if by > 0 else -1.0) * (1 + int(random(state) * 5) if random(state) < 0.2 else 1)
    slope = random(state) < 0.3 and row < STAY and not moves.whole[row]
    which, may = int(random(state) * microbatches), int(random(state) * 3)
    for k in range(first, last):
        if stages.level[k] != stages.level[s]:
            continue
        if row == STAY:
            stay[k, which] = may
        else:
            change = by * (k - first + 1) / (last - first) if slope else by
            changed = theta[row, k] + change * moves.step[row, k]
            theta[row, k] = min(moves.most[row, k], max(moves.least[row, k], changed))


@kernel
def _change_entry(entry: IntArray, state: State) -> None:
    """Exchange two microbatches in the order of entry, or move one and shift those in between."""
    last = len(entry) - 1
    one, other = int(random(state) * len(entry)), int(random(state) * len(entry))
    if random(state) < 0.5:
        other = max(0, min(last, one + int(5 * random(state)) - 2))
    if random(state) < 0.5:
        entry[one], entry[other] = entry[other], entry[one]
        return
    step, moved = 1 if other > one else -1, entry[one]
    for k in range(one, other, step):
        entry[k] = entry[k + step]
    entry[other] = moved


@kernel
def _change_keys(keys: FloatArray, state: State) -> None:
    """Exchange the keys of two random microbatches, or change the key of one of them.

    ``keys``: the sort keys of the microbatches for F's (row 0) and for B's (row 1), (2, M); a rank
    runs the lowest first. The change is made in one row or in both. A key is changed by a random
    step, or to about the key of the other microbatch.
    """
    microbatches, kind = keys.shape[1], int(2 * random(state))
    one, other = int(microbatches * random(state)), int(microbatches * random(state))
    first, last = (kind, kind + 1) if random(state) < 0.7 else (0, 2)
    exchange, step = random(state) < 0.5, 2.0 * normal(state)
    if random(state) < 0.5:
        step = keys[0, other] - keys[0, one] + random(state) - 0.5
    for k in range(first, last):
        if exchange:
            keys[k, one], keys[k, other] = keys[k, other], keys[k, one]
        else:
            keys[k, one] += step


@kernel
def _change_gaps(gap: FloatArray, unit: float, period: int, state: State) -> None:
    """Change the minimum times between the F's of a first stage.

    One gap is drawn at random. It changes, and with it either no other gap, or all later ones, or
    every ``period``-th later one, or every n-th later one with a random n. All change by plus or
    minus ``unit``, by a random multiple of ``unit``, or to 0. Sometimes the gap that follows the
    first changed one is then changed by the opposite amount. ``gap``: changed in place; M gaps for
    each direction in which microbatches pass through the stages.
    """
    number = len(gap)
    at, way = int(random(state) * number), random(state)
    if way < 0.3:
        by = unit if random(state) < 0.5 else -unit
    elif way < 0.8:
        by = unit * normal(state) * (0.1 if way < 0.6 else 1.0)
    else:
        by = -np.inf
    reach, step = random(state), 1
    if reach < 0.4:
        step = number
    elif reach < 0.65:
        step = period
    elif reach < 0.85:
        step = 2 + int(random(state) * 7)
    for k in range(at, number, step):
        gap[k] = max(0.0, gap[k] + by)
    if random(state) < 0.3 and by > -np.inf:
        other = (at + 1) % number
        gap[other] = max(0.0, gap[other] - by)
