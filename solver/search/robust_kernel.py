"""The kernel of robust local search: orders are annealed by their cost over samples of op times.

The moves are those of :mod:`.annealing_kernel`, those on a longest path on that of one sample at a
time. All samples of an order are timed at once: which op runs next depends on the order alone, so
that it is decided once, and each op's ends are a row of numbers.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipeloom.ir.kernels import kernel
from pipeloom.ir.model.ops import (
    CLASS_MASK,
    KIND_MASK,
    MICROBATCH_SHIFT,
    STAGE_MASK,
    STAGE_SHIFT,
    FloatArray,
    IntArray,
    OpKind,
)

from ..core.kernel_rng import random
from .annealing_kernel import (
    EDGES,
    LONGEST,
    MORE,
    at_an_edge,
    critical_blocks,
    keeps_rules,
    note,
    rank_of,
    shift,
)

_F, _B, _W = map(int, (OpKind.F, OpKind.B, OpKind.W))


@kernel
def run_samples(  # noqa: PLR0917
    order: IntArray,  # (N,) packed F's, B's and W's, rank after rank
    offsets: IntArray,  # (P + 1,)
    durations: FloatArray,  # (3, S, M, n)
    owner: IntArray,
    into_f: FloatArray,
    into_b: FloatArray,
    end: FloatArray,  # (N, n) out
    made: IntArray,  # (2, S, M) scratch: where each F and B is that has run, -1 before
) -> bool:
    """Times every op of every sample; False where some can never start."""
    ranks, stages, samples = len(offsets) - 1, owner.shape[0], end.shape[1]
    made[:] = -1
    waits_for = np.full(ranks, -1, dtype=np.int64)
    position = offsets[:-1].copy()
    ready = np.arange(ranks - 1, -1, -1)
    top, left = ranks, len(order)
    while top > 0:
        top -= 1
        rank = ready[top]
        i = position[rank]
        while i < offsets[rank + 1]:
            op = order[i]
            kind, stage = op & KIND_MASK, op >> STAGE_SHIFT & STAGE_MASK
            microbatch = op >> MICROBATCH_SHIFT
            cause, lag, wakes = -1, 0.0, -1
            if kind == _F and stage > 0:
                cause, lag = made[0, stage - 1, microbatch], into_f[stage, microbatch]
                if cause < 0:
                    waits_for[rank] = op - (1 << STAGE_SHIFT)
                    break
            elif kind == _B and stage + 1 < stages:
                cause, lag = made[1, stage + 1, microbatch], into_b[stage, microbatch]
                if cause < 0:
                    waits_for[rank] = op + (1 << STAGE_SHIFT)
                    break
            row, takes = end[i], durations[kind, stage, microbatch]
            if i == offsets[rank]:
                row[:] = 0.0
            else:
                row[:] = end[i - 1]
            if cause >= 0:
                came = end[cause]
                for k in range(samples):
                    row[k] = max(row[k], came[k] + lag)
            for k in range(samples):
                row[k] += takes[k]
            if kind == _F:
                made[0, stage, microbatch] = i
                if stage + 1 < stages:
                    wakes = owner[stage + 1, microbatch]
            elif kind == _B:
                made[1, stage, microbatch] = i
                if stage > 0:
                    wakes = owner[stage - 1, microbatch]
            i += 1
            if wakes >= 0 and wakes != rank and waits_for[wakes] == op:
                waits_for[wakes] = -1
                ready[top] = wakes
                top += 1
        left -= i - position[rank]
        position[rank] = i
    return bool(left == 0)


@kernel
def sampled_costs(  # noqa: PLR0917
    order: IntArray,
    offsets: IntArray,
    durations: FloatArray,
    end: FloatArray,
    makespan: bool,
    costs: FloatArray,  # (n,) out
    longest: IntArray,  # (n,) out: the rank that decides each
) -> None:
    """The period or makespan of each sample."""
    for k in range(len(costs)):
        most, opens, costs[k] = -1.0, np.inf, 0.0
        for r in range(len(offsets) - 1):
            if offsets[r + 1] == offsets[r]:
                continue
            op = order[offsets[r]]
            takes = durations[
                op & KIND_MASK, op >> STAGE_SHIFT & STAGE_MASK, op >> MICROBATCH_SHIFT, k
            ]
            begins = end[offsets[r], k] - takes
            opens = min(opens, begins)
            span = end[offsets[r + 1] - 1, k] - (0.0 if makespan else begins)
            if span > most:
                most, longest[k] = span, r
        costs[k] = most - opens if makespan else most


@kernel
def measure_of(costs: FloatArray, share: float) -> float:
    """The mean, or with a ``share`` the quantile, of costs."""
    if share <= 0.0:
        return float(costs.mean())
    return float(np.sort(costs)[min(len(costs) - 1, int(share * len(costs)))])


@kernel
def _blocks_of_sample(  # noqa: PLR0917
    order: IntArray,
    offsets: IntArray,
    owner: IntArray,
    durations: FloatArray,
    end: FloatArray,
    k: int,
    rank: int,
    place: IntArray,
    blocks: IntArray,
) -> int:
    """The blocks on the longest path to the end of ``rank`` in sample ``k``."""
    ends = end[:, k].copy()
    start = np.empty(len(order))
    for i in range(len(order)):
        op = order[i]
        start[i] = (
            ends[i]
            - durations[op & KIND_MASK, op >> STAGE_SHIFT & STAGE_MASK, op >> MICROBATCH_SHIFT, k]
        ) * (1.0 - 1e-12)  # an op that starts where another ends is rounded to its end
    return critical_blocks(order, offsets, offsets[1:], owner, start, ends, place, rank, blocks)


@kernel
def anneal_samples(  # noqa: PLR0917
    order: IntArray,  # (N,) packed F's, B's and W's; changed
    best: IntArray,  # (N,) out: the best order met, where it beats best_cost
    best_cost: float,
    offsets: IntArray,
    durations: FloatArray,  # (3, S, M, n)
    owner: IntArray,
    into_f: FloatArray,
    into_b: FloatArray,
    m_b: FloatArray,
    m_w: FloatArray,
    limit: FloatArray,
    makespan: bool,
    share: float,  # of the quantile; 0 for the mean
    hot: float,
    cold: float,
    moves: int,
    reach: int,
    state: npt.NDArray[np.uint64],
    stopped: npt.NDArray[np.bool_],
) -> float:
    """Tries ``moves`` moves; returns the mean or quantile of ``best``."""
    ranks, size, samples = len(offsets) - 1, len(order), durations.shape[3]
    end, made = np.empty((size, samples)), np.empty((2, *owner.shape), dtype=np.int64)
    costs, longest = np.empty(samples), np.zeros(samples, dtype=np.int64)
    done = np.zeros(owner.shape, dtype=np.int8)
    saved = np.empty(reach + LONGEST, dtype=np.int64)
    place, blocks = made.copy(), np.empty((size, 2), dtype=np.int64)
    note(order, 0, size - 1, place)
    cooling, temperature = (cold / hot) ** (1.0 / max(moves, 1)), hot
    current, number = np.inf, 0
    for move in range(-1, moves):
        if stopped[0]:
            break
        low = high = 0
        if move >= 0:
            temperature *= cooling
            if number > 0 and random(state) < EDGES:
                source, target = at_an_edge(blocks, number, reach, state)
                rank = rank_of(offsets, source)
            else:
                rank = int(random(state) * ranks)
                if offsets[rank + 1] - offsets[rank] < 2:
                    continue
                source = offsets[rank] + int(random(state) * (offsets[rank + 1] - offsets[rank]))
                distance = 1 + int(reach * random(state) ** 3)
                target = source + distance if random(state) < 0.5 else source - distance
            together = 1
            while together < LONGEST and random(state) < MORE:
                together += 1
            low, high = min(source, target), max(source + together - 1, target)
            if low < offsets[rank] or high >= offsets[rank + 1]:
                continue
            if order[source] & CLASS_MASK == order[target] & CLASS_MASK:
                continue
            saved[: high - low + 1] = order[low : high + 1]
            for k in range(together):
                if target > source:
                    shift(order, source, high)
                else:
                    shift(order, source + k, target + k)
            if not keeps_rules(order, offsets[rank], low, high, m_b, m_w, limit[rank], None, done):
                order[low : high + 1] = saved[: high - low + 1]
                continue
        value = np.inf
        if run_samples(order, offsets, durations, owner, into_f, into_b, end, made):
            sampled_costs(order, offsets, durations, end, makespan, costs, longest)
            value = measure_of(costs, share)
        if move < 0 or value <= current - temperature * np.log(1.0 - random(state)):
            current = value
            note(order, low, high, place)
            if value < np.inf:
                k = int(random(state) * samples)
                number = _blocks_of_sample(
                    order, offsets, owner, durations, end, k, longest[k], place, blocks
                )
            if value < best_cost:
                best_cost = value
                best[:] = order
        else:
            order[low : high + 1] = saved[: high - low + 1]
    return best_cost
