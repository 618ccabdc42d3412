"""The head-tail bound for placements with each stage on a rank of its own.

The *head* of a rank is the time before its first B, the *tail* the time after its last F; a rank
idles in both if memory is small. The bound chains the heads over the ranks
(:class:`~..core.linear_instance.LinearInstance`).

Let S_i be the start of the first op of stage i, which is an F. Then S_i >= S_(i-1) + f_(i-1) +
down_(i-1), because the microbatch of that F passed stage i-1. In a schedule of cost C, the span of
stage i is at most C (period) or C - offset_i (makespan: the first op of all is the first F of stage
0, and S_i is at least offset_i later).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pipeloom.ir.model.ops import FloatArray, IntArray
from pipeloom.ir.units import counted, duration

from ..core.bound import Bound, starts_later
from ..core.linear_instance import LinearInstance
from ..core.tolerances import ROUNDING
from .rank_model import beside_one_stage
from .several_stages.general_placement import HEAD_TAIL_WORDS


def head_tail(linear: LinearInstance, lags: FloatArray) -> Bound:
    """Idle time before a rank's first B and after its last F, chained over the ranks.

    *Head.* Before its first B stage i runs only F's. Let n_i be their number; 1 <= n_i <=
    ``capacity``, as each still holds its M_B. Let x_i be the time from S_i to the start of the
    first B. Then x_i >= n_i f_i, and the rank idles for at least x_i - n_i f_i before that B. The
    microbatch of the first B came back from stage i+1, whose own first B is no later; with S_(i+1)
    >= S_i + f_i + down_i this gives x_i >= x_(i+1) + f_i + down_i + b_(i+1) + up_i. On the last
    stage x >= f. Given the idle time that each stage is allowed, the least x_i follow from the last
    stage backwards: take the least n_i with n_i f_i + allowed idle time >= the bound on x_i. It
    gives the least x_i, and a smaller x_i never hurts an earlier stage.

    *Tail.* See :func:`tail_idle`. If n_i < M, the last F starts after the first B, so both idle
    times are disjoint and add up; if n_i = M only the larger one counts.

    The least C at which the idle time of every stage fits into its span minus its work is a bound.
    A larger C allows more idle time, so bisection finds it. The value returned is one at which it
    does not fit, hence never above that least C.
    """
    tail = tail_idle(linear)
    value, stuck = _bisected(linear, lags, tail)
    i = int((linear.work + tail + lags).argmax()) if stuck is None else stuck

    def numbers() -> list[str]:
        return [*_numbers(linear, lags, value, i), *starts_later(float(lags[i]))]

    return Bound(value, "head-tail", HEAD_TAIL_WORDS, int(linear.ranks[i]), numbers)


def _bisected(
    linear: LinearInstance, lags: FloatArray, tail: FloatArray
) -> tuple[float, int | None]:
    """The bound, and the stage whose head decides it; None if work and tail decide it."""
    low = float((linear.work + tail + lags).max())
    high = low + float(linear.round_trip.max())
    stuck = _heads(linear, low - linear.work - lags, tail).stuck
    for _ in range(100 if stuck is not None else 0):
        middle = (low + high) / 2
        found = _heads(linear, middle - linear.work - lags, tail).stuck
        if found is None:
            high = middle
        else:
            low, stuck = middle, found
    return low, stuck


@dataclass(frozen=True, slots=True, eq=False)
class Heads:
    """The heads of :func:`head_tail` in a schedule of a given cost; every array is by stage.

    ``counts``: the least n_i, or the capacity if no n_i is large enough. ``earliest``: the lower
    bound on x_i. ``stuck``: the last stage with no n_i that is large enough, so that no schedule
    has this cost; None if there is no such stage.
    """

    counts: IntArray
    earliest: FloatArray
    stuck: int | None


def fewest_forwards(linear: LinearInstance, cost: float, lags: FloatArray) -> IntArray:
    """The fewest F's before the first B of each stage in any schedule of ``cost``, shape (S,).

    Proven by :func:`head_tail`; equal to the capacity if ``cost`` is below that bound.
    """
    return _heads(linear, cost - linear.work - lags, tail_idle(linear)).counts


def _heads(linear: LinearInstance, idle: FloatArray, tail: FloatArray) -> Heads:
    """The heads if stages idle at most ``idle`` in total, of which ``tail`` after the last F."""
    counts, earliest = linear.capacity.copy(), np.empty(linear.stages)
    every, stuck, first_b = linear.microbatches, None, float(linear.f[-1])
    for i in range(linear.stages - 1, -1, -1):
        if i + 1 < linear.stages:
            first_b += linear.f[i] + linear.down[i] + linear.b[i + 1] + linear.up[i]
        earliest[i] = first_b
        f, most = linear.f[i], int(linear.capacity[i])
        fewest = _fewest(first_b, f, idle[i] - tail[i], min(most, every - 1))
        if fewest is not None:
            counts[i] = fewest
        elif stuck is None and (most < every or every * f + idle[i] < first_b):
            stuck = i
        first_b = max(first_b, counts[i] * f)
    return Heads(counts, earliest, stuck)


def _fewest(earliest: float, f: float, idle: float, most: int) -> int | None:
    """The least n in 1..most with n f + idle >= earliest."""
    if most < 1 or idle < 0 or most * f + idle < earliest:
        return None
    if f + idle >= earliest:
        return 1
    n = max(1, int((earliest - idle) / f) - 1)
    while n * f + idle < earliest:
        n += 1
    return n


def tail_idle(linear: LinearInstance) -> FloatArray:
    """The least idle time of each stage between its last F's start and the B of its microbatch.

    Proof: the B starts at least R_i after the F. Between them, the rank runs this F and otherwise
    only B's and W's of microbatches that it held when the F started
    (:func:`.rank_model.beside_one_stage`).
    """
    c, left = linear, linear.limit - linear.m_b
    beside = [
        beside_one_stage(b, w, m_b, m_w, room, c.microbatches)
        for b, w, m_b, m_w, room in zip(c.b, c.w, c.m_b, c.m_w, left, strict=True)
    ]
    return np.asarray(np.maximum(0.0, c.round_trip - (c.f + np.array(beside))))


def _numbers(linear: LinearInstance, lags: FloatArray, value: float, i: int) -> list[str]:
    tail, rank = tail_idle(linear), linear.ranks[i]
    below = _heads(linear, value * (1 - ROUNDING) - linear.work - lags, tail)
    most, m = int(linear.capacity[i]), linear.microbatches
    head, last = max(0.0, float(below.earliest[i] - most * linear.f[i])), float(tail[i])
    total = head + last if most < m else max(head, last)
    forced = _forced(linear, lags, value, i)
    would = "any cheaper schedule: " if forced else ""
    idles = f"idles at least {duration(total)}" if total > 0 else "need not idle"
    lines = [f"{would}rank {rank} computes for {duration(linear.work[i])} and {idles}"]
    if head > 0:
        lines += [_head(linear, i, head, float(below.earliest[i])), *forced]
    if last > 0:
        lines.append(_tail(linear, i, last))
    if head > 0 and last > 0 and most >= m:
        lines.append("the two may be the same idle time, so that the longer one counts")
    return lines


def _head(linear: LinearInstance, i: int, idle: float, first_b: float) -> str:
    most, m = int(linear.capacity[i]), linear.microbatches
    fill = "fills" if most == 1 else "fill"
    full = (
        f"{counted(most, 'microbatch')} {fill} its memory" if most < m else "its F's have all run"
    )
    return (
        f"{duration(idle)} before its first B: that B cannot come before {duration(first_b)}, "
        f"and {full} after {duration(float(most * linear.f[i]))}"
    )


def _tail(linear: LinearInstance, i: int, idle: float) -> str:
    trip = float(linear.round_trip[i])
    return (
        f"{duration(idle)} after its last F: that microbatch's B starts at least {duration(trip)} "
        f"after the F, and what memory holds then gives the rank {duration(trip - idle)} to "
        "compute meanwhile"
    )


def _forced(linear: LinearInstance, lags: FloatArray, value: float, stuck: int) -> list[str]:
    """A line about the last rank that needs one more F before its first B if the cost is lower."""
    shares = 1 - ROUNDING, 1 + ROUNDING
    below, at = (fewest_forwards(linear, value * share, lags) for share in shares)
    later = [k for k in range(stuck + 1, linear.stages) if below[k] > at[k]]
    return [
        f"which rank {linear.ranks[k]} holds up: at that cost it would have to run {below[k]} F's "
        f"before its first B, not {at[k]}, so as not to idle longer itself"
        for k in later[-1:]
    ]
