"""The head and the tail of every rank, chained over the ranks, where every stage has one of its own
(:class:`~..core.linear_instance.LinearInstance`).

Stage i's first op is an F, and for its start S_i: S_i >= S_(i-1) + f_(i-1) + down_(i-1), because
that F's microbatch passed stage i-1.
A cost C leaves stage i a span of C (period) or of C - offset_i (makespan: the first op of all is
stage 0's first F, and S_i is at least offset_i later).
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

    *Head.* Before its first B stage i has run F's alone, say n_i: at least one, and at most
    ``capacity`` as each still holds its M_B. Let x_i be the start of its first B after S_i. Then
    x_i >= n_i f_i, and the rank idles at least x_i - n_i f_i before that B. The first B's
    microbatch came back from stage i+1, whose own first B is no later:
    x_i >= x_(i+1) + f_i + down_i + b_(i+1) + up_i, by S_(i+1) >= S_i + f_i + down_i; on the last
    stage x >= f. So given an allowed idle time, the least x_i follows from the last stage on: the
    least n_i with n_i f_i + allowed >= the bound on x_i gives the least x_i, and a smaller x_i
    never hurts an earlier stage.

    *Tail.* See :func:`tail_idle`. Where n_i < M, the last F starts after the first B, so that both
    idle times are apart and add up; where n_i = M only the larger one counts.

    The least C for which every stage's idle time fits into its span less its work is a bound;
    more C allows more idle time, so bisection finds it. The value returned is one that does not
    fit, hence never above the least that does.
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
    """The bound, and the stage that the heads make it; None: work and a tail are enough."""
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
    """The heads of :func:`head_tail` in a schedule of some cost, every array by stage.

    ``counts``: the least n_i, as many as memory holds where none serves. ``earliest``: the bound on
    x_i. ``stuck``: the last stage that no n_i serves, so that no schedule has that cost, or None.
    """

    counts: IntArray
    earliest: FloatArray
    stuck: int | None


def fewest_forwards(linear: LinearInstance, cost: float, lags: FloatArray) -> IntArray:
    """The fewest F's before the first B on each stage that a schedule of ``cost`` can have.

    By the argument of :func:`head_tail`; as many as memory holds where ``cost`` is below the bound.
    """
    return _heads(linear, cost - linear.work - lags, tail_idle(linear)).counts


def _heads(linear: LinearInstance, idle: FloatArray, tail: FloatArray) -> Heads:
    """The heads where no stage idles more than ``idle`` in all, ``tail`` of it after its last F."""
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
    """The least idle time of each stage between its last F's start and that microbatch's B.

    Proof: the B starts at least R_i after the F. Between, the rank runs this F and otherwise only
    B's and W's of microbatches that it held when the F started
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
    """A line on the last rank that needs one F more at a lower cost, as it may idle less."""
    shares = 1 - ROUNDING, 1 + ROUNDING
    below, at = (fewest_forwards(linear, value * share, lags) for share in shares)
    later = [k for k in range(stuck + 1, linear.stages) if below[k] > at[k]]
    return [
        f"which rank {linear.ranks[k]} holds up: at that cost it would have to run {below[k]} F's "
        f"before its first B, not {at[k]}, so as not to idle longer itself"
        for k in later[-1:]
    ]
