"""The kernel of the local search: simulated annealing on the orders of all ranks.

A move takes one op of one rank and puts it a few places earlier or later. Ops of the same kind and
stage that it passes hand their microbatches on, so that their sequence stays: moving F2 behind F3
leaves F2 before F3 and moves the later place alone. Orders that break the memory limit or the order
of F, B and W on the rank are dropped before anything is simulated, as both depend on the order alone.
"""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt

from pipeloom.ir.ops import (
    KIND_MASK,
    MICROBATCH_SHIFT,
    STAGE_MASK,
    STAGE_SHIFT,
    FloatArray,
    IntArray,
    OpKind,
)
from pipeloom.ir.simulate import run_kernel

_F, _B, _W, _BW = int(OpKind.F), int(OpKind.B), int(OpKind.W), int(OpKind.BW)
_CLASS_MASK = (1 << MICROBATCH_SHIFT) - 1


@numba.njit(cache=True, nogil=True)
def random(state: npt.NDArray[np.uint64]) -> float:
    """The next of xorshift64*: uniform in [0, 1)."""
    x = state[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    state[0] = x
    return float((x * np.uint64(2685821657736338717)) >> np.uint64(11)) / 9007199254740992.0


@numba.njit(cache=True, nogil=True)
def _shift(order: IntArray, source: int, target: int) -> None:
    """Moves the op at ``source`` to ``target``; ops of its class keep their microbatches' sequence."""
    step = 1 if target > source else -1
    carried = order[source]
    at = source
    while at != target:
        passed = order[at + step]
        if passed & _CLASS_MASK == carried & _CLASS_MASK:
            passed, carried = carried, passed
        order[at] = passed
        at += step
    order[target] = carried


@numba.njit(cache=True, nogil=True)
def _keeps_rules(  # noqa: PLR0917
    order: IntArray,
    first: int,  # where the rank's ops begin
    low: int,
    high: int,  # the places low..high have changed
    m_b: FloatArray,
    m_w: FloatArray,
    limit: float,
    done: npt.NDArray[np.int8],  # (S, M) scratch, all 0: how far a microbatch has come; left all 0
) -> bool:
    """Whether F, B and W of each microbatch are in order and the memory fits."""
    held = 0.0
    keeps = True
    for at in range(first, high + 1):
        op = order[at]
        kind, stage, microbatch = (
            op & KIND_MASK,
            op >> STAGE_SHIFT & STAGE_MASK,
            op >> MICROBATCH_SHIFT,
        )
        steps = done[stage, microbatch]
        if kind == _F:
            held += m_b[stage]
            keeps = steps == 0 and (at < low or held <= limit)
            done[stage, microbatch] = 1
        elif kind == _W:
            held -= m_w[stage]
            keeps = steps == 2
            done[stage, microbatch] = 3
        else:
            held -= m_b[stage]
            if kind == _B:
                held += m_w[stage]
            keeps = steps == 1
            done[stage, microbatch] = 2
        if not keeps:
            break
    for at in range(first, high + 1):
        op = order[at]
        done[op >> STAGE_SHIFT & STAGE_MASK, op >> MICROBATCH_SHIFT] = 0
    return keeps


@numba.njit(cache=True, nogil=True)
def anneal_kernel(  # noqa: PLR0917
    order: IntArray,  # (N,) packed ops, rank after rank; changed
    best: IntArray,  # (N,) out: the best order met, where it beats best_cost
    best_cost: float,
    offsets: IntArray,
    durations: FloatArray,
    owner: IntArray,
    into_f: FloatArray,
    into_b: FloatArray,
    m_b: FloatArray,
    m_w: FloatArray,
    limit: FloatArray,
    makespan: bool,
    hot: float,  # temperature of the first and of the last move, in units of cost
    cold: float,
    moves: int,
    reach: int,  # how many places a move goes at most
    state: npt.NDArray[np.uint64],  # (1,) of the random numbers; changed
    stopped: npt.NDArray[np.bool_],  # (1,) turns true where another thread ends it all
) -> float:
    """Tries ``moves`` moves; returns the cost of ``best``."""
    ranks = offsets.shape[0] - 1
    size = order.shape[0]
    start, end = np.empty(size), np.empty(size)
    peak, position = np.empty(ranks), np.empty(ranks, dtype=np.int64)
    f_end, b_end = np.empty(owner.shape), np.empty(owner.shape)
    done = np.zeros(owner.shape, dtype=np.int8)
    saved = np.empty(reach + 1, dtype=np.int64)
    cooling = (cold / hot) ** (1.0 / max(moves, 1))
    temperature = hot
    current = np.inf
    critical = 0
    for move in range(-1, moves):
        if stopped[0]:
            break
        low = high = 0
        if move >= 0:
            temperature *= cooling
            rank = critical if random(state) < 0.3 else int(random(state) * ranks)
            first, length = offsets[rank], offsets[rank + 1] - offsets[rank]
            if length < 2:
                continue
            source = first + int(random(state) * length)
            distance = 1 + int(reach * random(state) ** 3)
            target = source + distance if random(state) < 0.5 else source - distance
            if target < first or target >= first + length:
                continue
            if order[source] & _CLASS_MASK == order[target] & _CLASS_MASK:
                continue
            low, high = min(source, target), max(source, target)
            saved[: high - low + 1] = order[low : high + 1]
            _shift(order, source, target)
            if not _keeps_rules(order, first, low, high, m_b, m_w, limit[rank], done):
                order[low : high + 1] = saved[: high - low + 1]
                continue
        runs = run_kernel(
            order, offsets, durations, owner, into_f, into_b, m_b, m_w,
            start, end, peak, f_end, b_end, position,
        )  # fmt: skip
        cost, value, longest = np.inf, np.inf, 0
        if runs:
            span, total, last, opens = 0.0, 0.0, 0.0, np.inf
            for r in range(ranks):
                if offsets[r + 1] > offsets[r]:
                    begins, ends = start[offsets[r]], end[offsets[r + 1] - 1]
                    total += ends - begins
                    last, opens = max(last, ends), min(opens, begins)
                    if ends - begins > span:
                        span, longest = ends - begins, r
            cost = last - opens if makespan else span
            # what ranks span beyond the longest tells apart the many orders of equal cost
            value = cost + 0.1 * total / ranks
        if move < 0 or value <= current - temperature * np.log(1.0 - random(state)):
            current = value
            critical = longest
            if cost < best_cost:
                best_cost = cost
                best[:] = order
        else:
            order[low : high + 1] = saved[: high - low + 1]
    return best_cost
