"""The ops that one rank can have run, or left to run, by what its memory holds and for how long.

The bounds are tighter for a rank with one stage, which holds whole numbers of one size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import numpy as np

from pipeloom.ir.model.ops import FloatArray

from ..core.tolerances import counts_within


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class RankModel:
    """The kinds that a rank runs ``count`` times, with their T_F, T_B, T_W, M_B, M_W, shape (K,).

    A kind is a stage, ``count`` the number of microbatches; or a stage of one microbatch, each once
    (:mod:`.several_stages.general_placement`). ``turn``: from the start of its F to the start
    of its B, at least. ``limit``: of the rank's memory, rounding included.
    """

    f: FloatArray
    b: FloatArray
    w: FloatArray
    m_b: FloatArray
    m_w: FloatArray
    turn: FloatArray
    limit: float
    count: int

    @property
    def work(self) -> float:
        return self.count * float((self.f + self.b + self.w).sum())

    def forwards(self) -> float:
        """The most time of F's that the rank can run before its first B ends: all hold M_B."""
        return most(self.f, self.m_b, self.limit, self.count)

    def early_weights(self) -> float:
        """The least time of W's that have run when the last B ends: M_W of the others is held.

        Of one stage the last B's own M_B is held until then.
        """
        if len(self.f) == 1:
            late = 1 + counts_within(self.limit - self.m_b[0], self.m_w[0], self.count - 1)
            return float((self.count - late) * self.w[0])
        late_work = most(self.w, self.m_w, self.limit, self.count)
        return max(0.0, self.count * float(self.w.sum()) - late_work)

    @property
    def held(self) -> float:
        """Memory times time: M_B from F's start to B's end at least, M_W while W runs."""
        return self.count * float((self.m_b * (self.turn + self.b) + self.m_w * self.w).sum())

    @property
    def room(self) -> float:
        """The most that the rank ever holds."""
        return min(self.limit, self.count * float(self.m_b.sum()))

    def area(self) -> Callable[[float], float]:
        """The most memory times time in a span, by the length of its half.

        The rank holds t after its start at most what F's can have taken: the largest M_B and t
        times the largest M_B / f more, on one stage 1 + t / f M_B's (floor). It holds t before its
        end at most the largest M_B and t times the larger of the largest M_B / (b + w) and M_W / w,
        as all but the op that runs then needs its B and W, or its W, before the end.
        """
        room, largest, f = self.room, float(self.m_b.max()), float(self.f[0])
        fall = max(*map(rate, self.m_b, self.b + self.w), *map(rate, self.m_w, self.w))
        if len(self.f) == 1:
            return lambda half: steps(room, largest, f, half) + ramp(room, largest, fall, half)
        rise = self.rise
        return lambda half: ramp(room, largest, rise, half) + ramp(room, largest, fall, half)

    @property
    def rise(self) -> float:
        """The most memory that F's fill in a unit of time."""
        return max(map(rate, self.m_b, self.f))

    def holding_span(self) -> float:
        """The least span in which what microbatches hold, for as long as they hold it, fits."""
        return span_that_holds(self.held, self.room, self.work, self.area())


def beside_one_stage(  # noqa: PLR0917
    b: float, w: float, m_b: float, m_w: float, left: float, count: int
) -> float:
    """The most time of B's and W's left when the last of ``count`` F's starts, its own apart.

    a microbatches have B and W to come and z have W alone: a M_B + z M_W <= ``left``, a + z <
    ``count``.
    """
    a = np.arange(int(counts_within(left, m_b, count - 1)) + 1)
    z = np.minimum(count - 1 - a, counts_within(left - a.astype(np.float64) * m_b, m_w, count))
    return float((a * (b + w) + z * w).max())


def most(times: FloatArray, sizes: FloatArray, room: float, count: float | FloatArray) -> float:
    """No choice of at most ``count`` of each kind, within ``room``, takes more time than this.

    The value is that of the best fractional choice, whole in sum where all sizes are equal.
    """
    if room < 0:
        return 0.0
    return best_fraction(times, sizes, filled(sizes, room), count)


def best_fraction(
    times: FloatArray, sizes: FloatArray, room: float, count: float | FloatArray
) -> float:
    """The most time of at most ``count`` of each kind, or parts of them, within ``room``."""
    counts, free = np.broadcast_to(count, times.shape), sizes <= 0
    total = float((counts * times)[free].sum())
    times, sizes, counts = times[~free], sizes[~free], counts[~free]
    order = np.argsort(-times / sizes, kind="stable")
    times, sizes, counts = times[order], sizes[order], counts[order]
    before = np.cumsum(counts * sizes) - counts * sizes
    numbers = np.minimum(counts, np.maximum(0.0, room - before) / sizes)
    return total + float((numbers * times).sum())


def filled(sizes: FloatArray, room: float) -> float:
    """The part of ``room`` that ``sizes`` can fill: a whole number of them where all are equal."""
    if len(set(sizes.tolist())) == 1 and sizes[0] > 0:
        return float(counts_within(room, sizes[0], inf) * sizes[0])
    return room


def span_that_holds(
    needed: float, limit: float, work: float, area: Callable[[float], float]
) -> float:
    """The least span T with ``area(T / 2)`` >= ``needed``, or a hair less.

    ``area``: the most memory times time in both halves of a span, by the length of a half;
    ``limit`` is the most memory at any moment, ``work`` what the rank computes.
    """
    if needed == 0:
        return 0.0
    low, high = 0.0, 2 * needed / limit + 2 * work
    for _ in range(100):
        half = (low + high) / 4
        if area(half) < needed:
            low = 2 * half
        else:
            high = 2 * half
    return float(low)


def held_until_last_backward(model: RankModel) -> float:
    """The least span from the rank's start to the end of its last B, by memory times time.

    Each kind holds M_B for its turn and T_B at least. The rank holds at most ``room`` of that, a
    whole number of M_B's where all are equal, and less while a W runs, beside whose M_W fewer may
    fit. Moreover, it holds t after its start at most what :meth:`RankModel.area` says, and t before
    the end of its last B at most the largest M_B and t times the largest M_B / b: there W's count
    as if they took the place of nothing.
    """
    needed = model.count * float((model.m_b * (model.turn + model.b)).sum())
    largest = float(model.m_b.max())
    rise, fall = model.rise, max(map(rate, model.m_b, model.b))
    room = min(filled(model.m_b, model.limit), model.count * float(model.m_b.sum()))
    beside = filled(model.m_b, model.limit - float(model.m_w.min()))
    if beside < room:
        ramps = sum((room - largest) / slope for slope in (rise, fall))
        needed += (room - beside) * max(0.0, model.early_weights() - ramps)
    return span_that_holds(
        needed,
        room,
        model.work,
        lambda half: ramp(room, largest, rise, half) + ramp(room, largest, fall, half),
    )


def ramp(limit: float, least: float, slope: float, time: float) -> float:
    """The integral of min(limit, least + slope t) over t in 0..time."""
    if slope == inf:
        return limit * time
    rises = min(time, max(0.0, (limit - least) / slope)) if slope > 0 else time
    return rises * (least + slope * rises / 2) + (time - rises) * limit


def steps(limit: float, size: float, every: float, time: float) -> float:
    """The integral of min(limit, size (1 + floor(t / every))) over t in 0..time."""
    if every == 0 or size == 0:
        return limit * time
    most_held = limit / size  # every is spent with 1, then 2, ... held
    steps = int(most_held if most_held * every <= time else time / every)
    area = size * every * steps * (steps + 1) / 2
    return area + (time - steps * every) * min(limit, size * (steps + 1))


def rate(size: float, time: float) -> float:
    """Memory taken or given back in a unit of time."""
    return size / time if time > 0 else inf if size > 0 else 0.0
