"""The kernel of local search on packings: sequences and whole microbatches change places.

All of a microbatch follows from its tokens and the sum of its lengths' squares, so that a change of
two microbatches costs no more than a few sums; the replicas that have them are simulated anew.
Microbatches are places, of all replicas one after the other; a place has a bin of sequences.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from pipeloom.ir.cost.simulator import run_kernel
from pipeloom.ir.kernels import kernel
from pipeloom.ir.model.ops import FloatArray, IntArray
from pipeloom.solver.core.kernels import random

EXCHANGED, MOVED = 0.25, 0.5
"""Shares of the moves that exchange two microbatches, and up to here move a sequence; the others
exchange two sequences."""
REFUSED = 16
"""How many moves that break a limit count as one that is simulated."""
MEAN = 1e-3
"""Weight of the replicas' mean beside the slowest one."""
HEAT = 1e-3
"""Share of the cost by which a move may make it worse at first; at the end none."""

Stages: TypeAlias = tuple[
    FloatArray, FloatArray, FloatArray, FloatArray, FloatArray, FloatArray, FloatArray, FloatArray
]
"""Milliseconds of F, B and W a token, and a token squared, (3, S); M_B and M_W a token, (S,);
delays into F and into B without tokens, and what they grow by a token, (S, M)."""
Tables: TypeAlias = tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]
"""Of each replica durations, (R, K, S, M); M_B, M_W, delays into F and into B, (R, S, M)."""
Bins: TypeAlias = tuple[IntArray, IntArray, IntArray, FloatArray, IntArray]
"""Sequences of each bin, (J, n), and their number, (J,); their tokens and sum of squares, (J,); the
bin of each place, (J,)."""
Orders: TypeAlias = tuple[IntArray, IntArray]
"""Packed ops, replica after replica, and where each rank's begin and end, (R, P + 1)."""


@kernel
def fill(place: int, tokens: int, squares: float, stages: Stages, tables: Tables) -> None:
    """Gives the microbatch its times, sizes and delays."""
    linear, square, m_b, m_w, into_f, into_b, more_f, more_b = stages
    durations, held, waiting, delay_f, delay_b = tables
    r, j = place // durations.shape[3], place % durations.shape[3]
    for s in range(linear.shape[1]):
        for kind in range(3):
            takes = linear[kind, s] * tokens + square[kind, s] * squares
            durations[r, kind, s, j] = takes
        durations[r, 3, s, j] = durations[r, 1, s, j] + durations[r, 2, s, j]
        held[r, s, j], waiting[r, s, j] = m_b[s] * tokens, m_w[s] * tokens
        delay_f[r, s, j] = into_f[s, j] + more_f[s, j] * tokens
        delay_b[r, s, j] = into_b[s, j] + more_b[s, j] * tokens


@kernel
def span_of(  # noqa: PLR0917
    r: int,
    orders: Orders,
    tables: Tables,
    owner: IntArray,
    limit: FloatArray,
    makespan: bool,
    times: FloatArray,  # (2, N) scratch
    ends: FloatArray,  # (2, S, M) scratch
) -> float:
    """The replica's cost; infinite where memory does not hold it, or it can never run."""
    flat, offsets = orders[0], orders[1][r]
    durations, held, waiting, delay_f, delay_b = tables
    start, end, peak = times[0], times[1], np.empty(len(limit))
    position = np.empty(len(limit), dtype=np.int64)
    if not run_kernel(
        flat, offsets[:-1], offsets[1:], durations[r], owner, delay_f[r], delay_b[r], held[r],
        waiting[r], None, start, end, peak, ends[0], ends[1], position,
    ):  # fmt: skip
        return np.inf
    span, last, opens = 0.0, 0.0, np.inf
    for p in range(len(limit)):
        if peak[p] > limit[p]:
            return np.inf
        if offsets[p + 1] > offsets[p]:
            begins, stops = start[offsets[p]], end[offsets[p + 1] - 1]
            span, last, opens = max(span, stops - begins), max(last, stops), min(opens, begins)
    return float(last - opens if makespan else span)


@kernel
def worth_of(spans: FloatArray) -> float:
    """The value that is minimized."""
    return float(spans.max() + MEAN * spans.mean())


@kernel
def take(one: int, at: int, other: int, bins: Bins) -> None:
    """Moves a sequence of bin ``one`` to the end of bin ``other``."""
    members, counts = bins[0], bins[1]
    counts[one] -= 1
    members[other, counts[other]] = members[one, at]
    counts[other] += 1
    members[one, at] = members[one, counts[one]]


@kernel
def exchange(one: int, at: int, other: int, back: int, bins: Bins) -> None:
    """Lets two sequences of two bins change places."""
    members = bins[0]
    members[one, at], members[other, back] = members[other, back], members[one, at]


@kernel
def carry(there: int, here: int, one: int, other: int, bins: Bins) -> None:
    """Counts a sequence of ``there`` tokens to bin ``other``, and one of ``here`` to ``one``."""
    tokens, squares = bins[2], bins[3]
    tokens[other] += there - here
    tokens[one] += here - there
    squares[other] += there * there - here * here
    squares[one] += here * here - there * there


@kernel
def pack_kernel(  # noqa: PLR0917
    lengths: IntArray,  # (n,)
    most: float,  # tokens of a microbatch
    bins: Bins,  # changed
    best: Bins,  # out: the best met, where it is better than worth[1]
    worth: FloatArray,  # (2,) of the bins, and of the best; changed
    stages: Stages,
    tables: Tables,  # filled; changed
    owner: IntArray,
    limit: FloatArray,
    orders: Orders,
    makespan: bool,
    hot: float,  # of the first and of the last move, in shares of HEAT
    cold: float,
    ops: float,  # simulated ones, until which moves are tried
    state: npt.NDArray[np.uint64],
    stopped: npt.NDArray[np.bool_],
) -> None:
    """Tries moves from the packing in ``bins``."""
    members, counts, tokens, squares, bin_of = bins
    number, each, replicas = len(bin_of), owner.shape[1], len(orders[1])
    size = len(orders[0]) / replicas
    times, ends = np.empty((2, len(orders[0]))), np.empty((2, *owner.shape))
    spans, was = np.empty(replicas), np.empty(replicas)
    for r in range(replicas):
        spans[r] = span_of(r, orders, tables, owner, limit, makespan, times, ends)
    used = 0.0
    while used < ops and not stopped[0]:
        used += size / REFUSED
        a, b = int(random(state) * number), int(random(state) * number)
        kind, first, second = random(state), random(state), random(state)
        if a == b:
            continue
        one, other = bin_of[a], bin_of[b]
        at, back = int(first * counts[one]), int(second * counts[other])
        whole = kind < EXCHANGED
        moves = not whole and kind < MOVED and counts[one] > 1
        there, here = lengths[members[one, at]], lengths[members[other, back]]
        if moves:
            here = 0
        if whole:
            bin_of[a], bin_of[b] = other, one
        elif tokens[other] + there - here > most or tokens[one] + here - there > most:
            continue
        else:
            carry(there, here, one, other, bins)
            if moves:
                take(one, at, other, bins)
            else:
                exchange(one, at, other, back, bins)
        was[:] = spans
        for place in (a, b):
            fill(place, tokens[bin_of[place]], squares[bin_of[place]], stages, tables)
        spans[a // each] = span_of(a // each, orders, tables, owner, limit, makespan, times, ends)
        used += size
        if a // each != b // each:
            used += size
            spans[b // each] = span_of(
                b // each, orders, tables, owner, limit, makespan, times, ends
            )
        value, heat = worth_of(spans), hot + (cold - hot) * min(1.0, used / ops)
        if value <= worth[0] + HEAT * worth[1] * heat * random(state):
            worth[0] = value
            if value < worth[1]:
                worth[1] = value
                best[0][:], best[1][:], best[2][:] = members, counts, tokens
                best[3][:], best[4][:] = squares, bin_of
            continue
        spans[:] = was
        if whole:
            bin_of[a], bin_of[b] = one, other
        else:
            carry(here, there, one, other, bins)
            if moves:
                take(other, counts[other] - 1, one, bins)
            else:
                exchange(one, at, other, back, bins)
        for place in (a, b):
            fill(place, tokens[bin_of[place]], squares[bin_of[place]], stages, tables)
