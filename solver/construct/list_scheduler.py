"""The list scheduler for any map of stages to ranks: simulates all ranks forward in time.

Two copies of the weights are treated as one map with twice as many stages: first those of one
direction's microbatches, then those of the other. *Stage* here means one of these.

A free rank runs the F or B with the lowest key among those whose input has arrived. The key is the
microbatch's place in the order of entry plus an offset of the stage and kind. An F must find room
in memory, and leave some for the F's of later stages on its rank. A W runs if an F lacks memory,
more than ``defer`` W's wait, or the next input arrives late enough. A first stage may let some time
pass between two F's. Every stage runs its F's, B's and W's in the order of entry, which is a
parameter, too, if microbatches are unlike.

The best offsets and gaps depend on the placement and on memory, so they are drawn at random and
optimized by simulated annealing: :func:`tune_list`.

It is separate from :mod:`.list_scheduler_linear`, which takes about 12 ns per op and this one 65,
because of the choice among stages. The kernel takes its arrays out of their tuples and inlines the
choice: each read from a tuple counts references, which made the whole 4 to 7 times slower.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipeloom.ir.cost.cost_tables import of_pair
from pipeloom.ir.kernels import kernel
from pipeloom.ir.model.ops import FloatArray, IntArray, OpKind

from ..core.kernels import State, earliest, inlined, normal, packed, random
from ..core.tolerances import ROUNDING
from .list_parameters import ListParameters, Stages

_F, _B, _W = map(int, (OpKind.F, OpKind.B, OpKind.W))
METRED = 0.5  # share of the changes of gaps that are one whole ``meeting``
UNEVEN = 0.5  # weight of the 4-norm of the ranks' idle times, added to the cost


@kernel
def list_schedule(  # noqa: PLR0917
    stages: Stages,
    parameters: ListParameters,
    makespan: bool,
    order: IntArray,
    ends: FloatArray,
    spans: FloatArray,
) -> float:
    """Fill ``order``, and ``spans`` with the span of each rank; returns the order's cost.

    The cost is infinite if no op can start any more, for lack of memory.
    """
    f, b, w, m_b, m_w, into_f, into_b, owner, _, own, offsets, limit = stages[:12]
    keys, ahead, reserve, defer, fill, patiences, gap, entry = parameters
    number, microbatches = ends.shape[1:]
    ranks, names = len(limit), stages.names
    depth = number // len(names)
    ends[:] = np.inf
    clock = np.full(ranks, np.inf)  # when a rank decides next; infinite: until it is woken
    free, first, held = np.zeros(ranks), np.full(ranks, -1.0), np.zeros(ranks)
    done = np.zeros((3, number), dtype=np.int64)
    at = 3 * microbatches * offsets[:-1]
    clock[owner[::depth]] = 0.0
    entered = np.full(len(names), -np.inf)  # when each first stage started its latest F
    left = 3 * number * microbatches
    while left > 0:
        r = earliest(clock)
        now = clock[r]
        if now == np.inf:
            return np.inf
        kind, s, comes = _choose(
            f, w, m_b, into_f, into_b, own, offsets, limit, keys, ahead, reserve, defer, fill,
            patiences, gap, entry, r, now, held[r], entered, done, ends,
        )  # fmt: skip
        if kind < 0:
            clock[r] = comes
            continue
        j = entry[done[kind, s]]
        stream = int(s >= depth)
        stage = s - stream * depth
        order[at[r]] = packed(kind, stage, names[stream, j])
        at[r] += 1
        done[kind, s] += 1
        if first[r] < 0.0:
            first[r] = now
        wakes, arrival = -1, np.inf
        if kind == _F:
            free[r] = now + of_pair(f, s, j)
            ends[_F, s, j] = free[r]
            held[r] += of_pair(m_b, s, j)
            if stage == 0:
                entered[stream] = now
            if stage + 1 < depth:
                wakes, arrival = owner[s + 1], free[r] + of_pair(into_f, s + 1, j)
        elif kind == _B:
            free[r] = now + of_pair(b, s, j)
            ends[_B, s, j] = free[r]
            held[r] += of_pair(m_w, s, j) - of_pair(m_b, s, j)
            if stage > 0:
                wakes, arrival = owner[s - 1], free[r] + of_pair(into_b, s - 1, j)
        else:
            free[r] = now + of_pair(w, s, j)
            held[r] -= of_pair(m_w, s, j)
        clock[r] = free[r]
        if wakes >= 0 and wakes != r:
            clock[wakes] = min(clock[wakes], max(arrival, free[wakes]))
        left -= 1
    last = 0.0
    for r in range(ranks):
        spans[r] = free[r] - max(first[r], 0.0)
        last = max(last, free[r])
    return last if makespan else spans.max()


@inlined
def _choose(  # noqa: PLR0917
    f: FloatArray,
    w: FloatArray,
    m_b: FloatArray,
    into_f: FloatArray,
    into_b: FloatArray,
    own: IntArray,
    offsets: IntArray,
    limit: FloatArray,
    keys: FloatArray,
    ahead: IntArray,
    reserve: FloatArray,
    defer: IntArray,
    fill: FloatArray,
    patiences: FloatArray,
    gap: FloatArray,
    entry: IntArray,
    r: int,
    now: float,
    held: float,
    entered: FloatArray,
    done: IntArray,
    ends: FloatArray,
) -> tuple[int, int, float]:
    """The kind and stage of the op that rank r runs now, and the time.

    If none can run, kind is -1 and the time is that of the next arrival.
    """
    number, microbatches = ends.shape[1:]
    depth = number // len(entered)
    best, best_kind, best_stage = np.inf, -1, -1
    soon, comes = np.inf, np.inf  # lowest key among ops worth waiting for; the next arrival
    weight, weight_key, waiting, full = -1, np.inf, 0, False
    for at in range(offsets[r], offsets[r + 1]):
        s = own[at]
        jf, jb, jw = done[_F, s], done[_B, s], done[_W, s]
        for kind in (_B, _F):
            if kind == _B:
                if jb == jf:
                    continue
                place, j = jb, entry[jb]
                came = ends[_F, s, j]
                if s not in (depth - 1, number - 1):
                    came = ends[_B, s + 1, j] + of_pair(into_b, s, j)
            else:
                if jf == microbatches or jf - jb >= ahead[s]:
                    continue
                place, j = jf, entry[jf]
                if s in (0, depth):
                    stream = int(s >= depth)
                    came = max(0.0, entered[stream] + gap[stream * microbatches + place])
                else:
                    came = ends[_F, s - 1, j] + of_pair(into_f, s, j)
                if held + of_pair(m_b, s, j) > limit[r] - reserve[s]:
                    full = full or came <= now
                    continue
            key = place + keys[kind, s]
            if came <= now:
                if key < best:
                    best, best_kind, best_stage = key, kind, s
                continue
            comes = min(comes, came)
            # the first microbatch passes without waiting
            waits = place > 0 or s in (0, depth)
            patience = patiences[s] if waits else of_pair(f, s, j) * (1 - ROUNDING)
            if came <= now + patience:
                soon = min(soon, key)
        if jw < jb:
            waiting += jb - jw
            if jw + keys[_B, s] < weight_key:
                weight, weight_key = s, jw + keys[_B, s]
    if weight >= 0 and (waiting > defer[r] or (full and best_kind != _B)):
        return _W, weight, now
    if best_kind >= 0 and (best <= soon or comes == np.inf):
        return best_kind, best_stage, now
    if weight >= 0 and comes >= now + fill[r] * of_pair(w, weight, entry[done[_W, weight]]):
        return _W, weight, now
    return -1, -1, comes


@kernel
def tune_list(  # noqa: PLR0917
    stages: Stages,
    parameters: ListParameters,  # changed in place
    makespan: bool,
    best: IntArray,  # the best order found, if it costs less than best_cost
    best_cost: float,
    hot: float,  # temperature of the first move, in units of cost; `cold`: of the last
    cold: float,
    moves: int,
    order: IntArray,
    ends: FloatArray,
    spans: FloatArray,
    state: State,  # changed in place
    stopped: npt.NDArray[np.bool_],  # (1,), ends the search when set
) -> tuple[float, float]:
    """Simulated annealing, ``moves`` moves; returns the costs of ``best`` and ``parameters``."""
    key, ahead, reserve = parameters.key.copy(), parameters.ahead.copy(), parameters.reserve.copy()
    defer, fill = parameters.defer.copy(), parameters.fill.copy()
    patience, gap = parameters.patience.copy(), parameters.gap.copy()
    entry = parameters.entry.copy()
    cooling = (cold / hot) ** (1.0 / max(moves, 1))
    temperature, current, current_cost = hot, np.inf, np.inf
    for move in range(-1, moves):
        if stopped[0]:
            break
        temperature *= cooling
        if move >= 0:
            for _ in range(1 + int(2 * random(state))):
                _change_one(stages, parameters, state)
        cost = list_schedule(stages, parameters, makespan, order, ends, spans)
        value = cost + UNEVEN * ((spans - stages.work) ** 4).mean() ** 0.25
        if move < 0 or value <= current - temperature * np.log(1.0 - random(state)):
            current, current_cost = value, cost
            if cost < best_cost:
                best_cost = cost
                best[:] = order
            key[:], ahead[:], reserve[:] = parameters.key, parameters.ahead, parameters.reserve
            defer[:], fill[:] = parameters.defer, parameters.fill
            patience[:], gap[:] = parameters.patience, parameters.gap
            entry[:] = parameters.entry
        else:
            parameters.key[:], parameters.ahead[:], parameters.reserve[:] = key, ahead, reserve
            parameters.defer[:], parameters.fill[:] = defer, fill
            parameters.patience[:], parameters.gap[:] = patience, gap
            parameters.entry[:] = entry
    return best_cost, current_cost


@kernel
def _change_one(stages: Stages, parameters: ListParameters, state: State) -> None:
    """Random move: a number of a rank, of stages of one level, the gaps, or the order of entry."""
    if _moves_entry(stages.m_b, parameters.entry, state):
        return
    number, ranks, microbatches = len(stages.f), len(stages.limit), stages.names.shape[1]
    chance, r = random(state), int(random(state) * ranks)
    more = 1 if random(state) < 0.5 else -1
    if chance < 0.1:
        more *= 5 if random(state) < 0.2 else 1
        for k in range(ranks) if random(state) < 0.5 else range(r, r + 1):
            parameters.defer[k] = max(0, min(parameters.defer[k], 2 * microbatches) + more)
    elif chance < 0.2:
        by = 0.3 * normal(state)
        for k in range(ranks) if random(state) < 0.5 else range(r, r + 1):
            parameters.fill[k] = max(0.0, parameters.fill[k] + by)
    elif chance < 0.38:
        _change_gaps(parameters.gap, stages.work.max() / microbatches, stages.meeting, state)
    else:
        s, reach = int(random(state) * number), random(state)
        first = s if reach < 0.6 else 0
        last = s + 1 if reach < 0.4 or 0.6 <= reach < 0.8 else number
        by = normal(state) * (2.0 if random(state) < 0.3 else 0.4)
        slope, which = random(state) < 0.3, random(state)
        more *= 1 + int(random(state) * 5) if random(state) < 0.2 else 1
        for k in range(first, last):
            if stages.level[k] != stages.level[s]:
                continue
            if chance < 0.73:
                change = by * (k - first + 1) / (last - first) if slope else by
                if which < 0.6:
                    parameters.key[_F, k] += change
                if which > 0.4:
                    parameters.key[_B, k] += change
            elif chance < 0.86:
                parameters.ahead[k] = min(microbatches, max(1, parameters.ahead[k] + more))
            elif chance < 0.91:
                change = 0.5 * more * of_pair(stages.m_b, k, 0)
                parameters.reserve[k] = max(0.0, parameters.reserve[k] + change)
            else:
                change = 0.3 * by * of_pair(stages.f, k, 0)
                parameters.patience[k] = max(0.0, parameters.patience[k] + change)


@kernel
def _moves_entry(table: FloatArray, entry: IntArray, state: State) -> bool:
    """Half of the time, if microbatches are unlike, change the order of entry; returns whether.

    One microbatch is exchanged with another, or moved, and those in between are shifted.
    """
    if table.ndim == 1 or random(state) < 0.5:
        return False
    last = len(entry) - 1
    one, other = int(random(state) * len(entry)), int(random(state) * len(entry))
    if random(state) < 0.5:
        other = max(0, min(last, one + int(5 * random(state)) - 2))
    if random(state) < 0.5:
        entry[one], entry[other] = entry[other], entry[one]
        return True
    step, moved = 1 if other > one else -1, entry[one]
    for k in range(one, other, step):
        entry[k] = entry[k + step]
    entry[other] = moved
    return True


@kernel
def _change_gaps(gap: FloatArray, turn: float, meeting: float, state: State) -> None:
    """Change one gap, or several from there on; ``turn``: about the longest useful change."""
    microbatches = len(gap)
    first = int(random(state) * microbatches)
    if meeting > 0 and random(state) < METRED:
        by = meeting if random(state) < 0.5 else -meeting
        gap[first] = max(0.0, gap[first] + by)
        if random(state) < 0.5:
            other = int(random(state) * microbatches)
            gap[other] = max(0.0, gap[other] - by)
        return
    by = turn * normal(state) * (0.2 if random(state) < 0.5 else 1.0)
    if random(state) < 0.15:
        by = -np.inf
    reach, step = random(state), 1
    if reach < 0.4:
        step = microbatches
    elif reach >= 0.8:
        step = 2 + int(random(state) * 4)
    last = microbatches
    if random(state) < 0.5:
        last = min(microbatches, first + 1 + int(random(state) * microbatches))
    for k in range(first, last, step):
        gap[k] = max(0.0, gap[k] + by)
