"""The kernel of robust local search: orders are annealed by their cost over samples of op times.

The moves are those of :mod:`.moves`, those on a longest path on that of one sample at a
time. All samples of an order are timed at once: which op runs next depends on the order alone, so
that it is decided once, and each op's ends are a row of numbers. After a move the rows alone are
computed again that it may have changed: those of the places that ops moved to, and of ops behind
one whose row has changed. Many moves are without effect on most of the schedule.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pipeloom.ir.kernels import kernel
from pipeloom.ir.model.ops import FloatArray, IntArray, OpKind

from ...core.kernels import CostArrays, State, fields, random
from .moves import (
    EDGES,
    LONGEST,
    anywhere,
    at_an_edge,
    copy_places,
    critical_blocks,
    keeps_rules,
    move_run,
    note,
    rank_of,
)

_F, _B, _W = map(int, (OpKind.F, OpKind.B, OpKind.W))
WALK, TIMES = 0.5, 1 / 16
"""What deciding which op runs next, and one of its times, count in simulated ops."""
REFRESH = 0.25
"""Share of the moves taken after which the longest path of another sample is looked for."""


@kernel
def row_of(op: int, stages: int, microbatches: int) -> int:
    """The row that has the times of a packed op."""
    kind, stage, microbatch = fields(op)
    return (kind * stages + stage) * microbatches + microbatch


@kernel
def time_samples(  # noqa: PLR0917
    order: IntArray,  # (N,) packed F's, B's and W's, rank after rank
    offsets: IntArray,  # (P + 1,)
    low: int,
    high: int,  # the places low..high have changed
    costs: CostArrays,  # durations: (3 S M, n)
    end: FloatArray,  # (3 S M, n) in and out
    made: npt.NDArray[np.bool_],  # (3 S M,) scratch: which F's and B's have run
    changed: npt.NDArray[np.bool_],  # (3 S M,) scratch
    rows: IntArray,  # (3 S M,) out: the rows that have changed, and
    before: FloatArray,  # (3 S M, n) out: what they were
) -> tuple[bool, int]:
    """Times every op of every sample; False where some can never start, and the number of rows."""
    durations, owner, into_f, into_b, _, _, _ = costs
    ranks, samples = len(offsets) - 1, end.shape[1]
    stages, microbatches = owner.shape
    for row in range(len(made)):
        made[row] = changed[row] = False
    new, none = np.empty(samples), np.zeros(samples)
    waits_for, position = np.empty(ranks, dtype=np.int64), np.empty(ranks, dtype=np.int64)
    ready = np.empty(ranks, dtype=np.int64)
    for rank in range(ranks):
        waits_for[rank], position[rank], ready[rank] = -1, offsets[rank], ranks - 1 - rank
    top, left, count = ranks, len(order), 0
    while top > 0:
        top -= 1
        rank = ready[top]
        i = position[rank]
        previous = -1 if i == offsets[rank] else row_of(order[i - 1], stages, microbatches)
        while i < offsets[rank + 1]:
            kind, stage, microbatch = fields(order[i])
            row = (kind * stages + stage) * microbatches + microbatch
            cause, lag, wakes = -1, 0.0, -1
            if kind == _F and stage > 0:
                cause, lag = row - microbatches, into_f[stage, microbatch]
                if not made[cause]:
                    waits_for[rank] = cause
                    break
            elif kind == _B and stage + 1 < stages:
                cause, lag = row + microbatches, into_b[stage, microbatch]
                if not made[cause]:
                    waits_for[rank] = cause
                    break
            if (
                low <= i <= high + 1
                or (previous >= 0 and changed[previous])
                or (cause >= 0 and changed[cause])
            ):
                was, takes = end[row], durations[row]
                free = none if previous < 0 else end[previous]
                if cause >= 0:
                    came = end[cause]
                    for k in range(samples):
                        new[k] = max(free[k], came[k] + lag) + takes[k]
                else:
                    for k in range(samples):
                        new[k] = free[k] + takes[k]
                for k in range(samples):
                    if new[k] != was[k]:
                        changed[row] = True
                        break
                if changed[row]:
                    rows[count] = row
                    for k in range(samples):
                        before[count, k], was[k] = was[k], new[k]
                    count += 1
            if kind != _W:
                made[row] = True
                if kind == _F:
                    if stage + 1 < stages:
                        wakes = owner[stage + 1, microbatch]
                elif stage > 0:
                    wakes = owner[stage - 1, microbatch]
            previous = row
            i += 1
            if wakes >= 0 and wakes != rank and waits_for[wakes] == row:
                waits_for[wakes] = -1
                ready[top] = wakes
                top += 1
        left -= i - position[rank]
        position[rank] = i
    return bool(left == 0), count


@kernel
def sampled_costs(  # noqa: PLR0917
    order: IntArray,
    offsets: IntArray,
    costs: CostArrays,
    end: FloatArray,
    makespan: bool,
    found: FloatArray,  # (n,) out
    longest: IntArray,  # (n,) out: the rank that decides each
) -> None:
    """The period or makespan of each sample."""
    durations, (stages, microbatches) = costs.durations, costs.owner.shape
    opens = np.empty(len(found))
    for k in range(len(found)):
        found[k], opens[k] = -1.0, np.inf
    for r in range(len(offsets) - 1):
        if offsets[r + 1] == offsets[r]:
            continue
        first = row_of(order[offsets[r]], stages, microbatches)
        ends = end[row_of(order[offsets[r + 1] - 1], stages, microbatches)]
        for k in range(len(found)):
            begins = end[first, k] - durations[first, k]
            opens[k] = min(opens[k], begins)
            span = ends[k] - (0.0 if makespan else begins)
            if span > found[k]:
                found[k], longest[k] = span, r
    if makespan:
        for k in range(len(found)):
            found[k] -= opens[k]


@kernel
def measure_of(costs: FloatArray, share: float) -> float:
    """The mean, or with a ``share`` the quantile, of costs: the least of as many as are above."""
    size = len(costs)
    if share <= 0.0:
        total = 0.0
        for k in range(size):
            total += costs[k]
        return total / size
    most = np.empty(size - min(size - 1, int(share * size)))  # ascending
    for k in range(size):
        at = min(k, len(most))
        if at == len(most):
            if costs[k] <= most[0]:
                continue
            for i in range(1, at):
                most[i - 1] = most[i]
            at -= 1
        while at > 0 and most[at - 1] > costs[k]:
            most[at] = most[at - 1]
            at -= 1
        most[at] = costs[k]
    return float(most[0])


@kernel
def _blocks_of_sample(  # noqa: PLR0917
    order: IntArray,
    offsets: IntArray,
    costs: CostArrays,
    end: FloatArray,
    k: int,
    rank: int,
    place: IntArray,
    blocks: IntArray,
) -> int:
    """The blocks on the longest path to the end of ``rank`` in sample ``k``."""
    durations, (stages, microbatches) = costs.durations, costs.owner.shape
    ends, start = np.empty(len(order)), np.empty(len(order))
    for i in range(len(order)):
        row = row_of(order[i], stages, microbatches)
        ends[i] = end[row, k]
        start[i] = (ends[i] - durations[row, k]) * (
            1.0 - 1e-12
        )  # an op that starts where another ends is rounded to its end
    return critical_blocks(
        order, offsets, offsets[1:], costs.owner, start, ends, place, rank, blocks
    )


@kernel
def anneal_samples(  # noqa: PLR0917
    order: IntArray,  # (N,) packed F's, B's and W's; changed
    best: IntArray,  # (N,) out: the best order met, where it beats best_cost
    best_cost: float,
    offsets: IntArray,
    costs: CostArrays,  # durations: (3 S M, n)
    makespan: bool,
    share: float,  # of the quantile; 0 for the mean
    hot: float,
    cold: float,
    ops: float,  # simulated ones, until which moves are tried
    reach: int,
    state: State,
    stopped: npt.NDArray[np.bool_],
) -> float:
    """Tries moves; returns the mean or quantile of ``best``."""
    owner, m_b, m_w, limit = costs.owner, costs.m_b, costs.m_w, costs.limit
    ranks, size, samples = len(limit), len(order), costs.durations.shape[1]
    end, before = np.zeros(costs.durations.shape), np.empty(costs.durations.shape)
    made, changed = np.empty(len(end), dtype=np.bool_), np.empty(len(end), dtype=np.bool_)
    rows = np.empty(len(end), dtype=np.int64)
    found, longest = np.empty(samples), np.zeros(samples, dtype=np.int64)
    done = np.zeros(owner.shape, dtype=np.int8)
    saved = np.empty(reach + LONGEST, dtype=np.int64)
    place, blocks = np.empty((2, *owner.shape), dtype=np.int64), np.empty((size, 2), dtype=np.int64)
    note(order, 0, size - 1, place)
    used, temperature, current, number, first = 0.0, hot, np.inf, 0, True
    while used < ops and not stopped[0]:
        low, high = 0, size - 1
        used += 1.0
        if not first:
            if number > 0 and random(state) < EDGES:
                source, target = at_an_edge(blocks, number, reach, state)
                rank = rank_of(offsets, source)
            else:
                rank = int(random(state) * ranks)
                if offsets[rank + 1] - offsets[rank] < 2:
                    continue
                source, target = anywhere(
                    offsets[rank], offsets[rank + 1] - offsets[rank], reach, state
                )
            low, high = move_run(
                order, source, target, offsets[rank], offsets[rank + 1], saved, state
            )
            if high < low:
                continue
            used += high + 1 - offsets[rank]
            if not keeps_rules(order, offsets[rank], low, high, m_b, m_w, limit[rank], None, done):
                copy_places(saved, 0, high - low, order, low)
                continue
        runs, count = time_samples(
            order, offsets, low, high, costs, end, made, changed, rows, before
        )
        used += WALK * size + TIMES * samples * (count + ranks)
        value = np.inf
        if runs:
            sampled_costs(order, offsets, costs, end, makespan, found, longest)
            value = measure_of(found, share)
        temperature = hot * (cold / hot) ** (used / ops)
        if first or value <= current - temperature * np.log(1.0 - random(state)):
            current, first = value, False
            note(order, low, high, place)
            if value < np.inf and (number == 0 or random(state) < REFRESH):
                used += size
                k = int(random(state) * samples)
                number = _blocks_of_sample(order, offsets, costs, end, k, longest[k], place, blocks)
            if value < best_cost:
                best_cost = value
                copy_places(order, 0, size - 1, best, 0)
        else:
            copy_places(saved, 0, high - low, order, low)
            for at in range(count):
                for k in range(samples):
                    end[rows[at], k] = before[at, k]
    return best_cost
