"""Bounds on the ops that one rank can run by some moment, and on its span, given its memory.

*Memory-time* is the memory held, integrated over time. The bounds are tighter for a rank with one
stage, because it holds whole multiples of one size.
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
    """A rank that runs K kinds of (F, B, W), each ``count`` times; all arrays have shape (K,).

    There are two uses. Either each of the rank's stages is a kind, and ``count`` is the number of
    microbatches; or each pair of a stage and a microbatch is a kind, and ``count`` is 1
    (:mod:`.several_stages.general_placement`). ``f``, ``b``, ``w``, ``m_b``, ``m_w``: T_F, T_B,
    T_W, M_B, M_W of each kind. ``turn``: for each kind, the minimum time from the start of its F to
    the start of its B. ``limit``: the rank's memory limit, including the tolerance.
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

    def early_weights(self) -> float:
        """Lower bound on the total time of the W's that have run when the rank's last B ends.

        The bound holds because the memory at that time must contain M_W of each W that has not run.
        If there is one kind, it must also contain M_B of the last B.
        """
        if len(self.f) == 1:
            late = 1 + counts_within(self.limit - self.m_b[0], self.m_w[0], self.count - 1)
            return float((self.count - late) * self.w[0])
        late_work = most(self.w, self.m_w, self.limit, self.count)
        return max(0.0, self.count * float(self.w.sum()) - late_work)

    @property
    def held(self) -> float:
        """Lower bound on the total memory-time that the ops of the rank need.

        Each microbatch of each kind holds M_B from the start of its F to the end of its B, which is
        at least ``turn + b``, and M_W while its W runs.
        """
        return self.count * float((self.m_b * (self.turn + self.b) + self.m_w * self.w).sum())

    @property
    def room(self) -> float:
        """The most memory that the rank can hold: the limit, or the sum of all M_B if less."""
        return min(self.limit, self.count * float(self.m_b.sum()))

    def area(self) -> Callable[[float], float]:
        """Return a function that maps half a span's length to the most memory-time in that span.

        At time t after the span's start, the rank holds at most what F's can have taken: the
        largest M_B, plus t times the largest M_B / f; with one kind, 1 + floor(t / f) times M_B. At
        time t before the span's end, it holds at most the largest M_B, plus t times the maximum of
        all M_B / (b + w) and M_W / w: all that is held, except by the op that is running, still
        needs its B and W, or its W, before the end.
        """
        room, largest, f = self.room, float(self.m_b.max()), float(self.f[0])
        fall = max(*map(rate, self.m_b, self.b + self.w), *map(rate, self.m_w, self.w))
        if len(self.f) == 1:
            return lambda half: steps(room, largest, f, half) + ramp(room, largest, fall, half)
        rise = self.rise
        return lambda half: ramp(room, largest, rise, half) + ramp(room, largest, fall, half)

    @property
    def rise(self) -> float:
        """The highest rate at which F's can take memory: the maximum of M_B / f over all kinds."""
        return max(map(rate, self.m_b, self.f))

    def holding_span(self) -> float:
        """Lower bound on the rank's span by memory-time.

        It is the shortest span whose memory-time (:meth:`area`) is enough for all ops
        (:attr:`held`).
        """
        return span_that_holds(self.held, self.room, self.work, self.area())


def most(times: FloatArray, sizes: FloatArray, room: float, count: float | FloatArray) -> float:
    """Upper bound on the total time of at most ``count`` items of each kind that fit in ``room``.

    It is :func:`best_fraction` of the same arguments (fractional knapsack); but if all sizes are
    equal, ``room`` is first reduced to a multiple of the size.
    """
    if room < 0:
        return 0.0
    return best_fraction(times, sizes, filled(sizes, room), count)


def best_fraction(
    times: FloatArray, sizes: FloatArray, room: float, count: float | FloatArray
) -> float:
    """The optimum of the fractional knapsack: the maximum total time of items that fit in ``room``.

    ``times``, ``sizes``: the time and the size of one item of each kind, shape (n,). ``count``: the
    maximum number of items of each kind, either one number for all kinds or an array of shape (n,).
    The number of items taken of a kind may be a fraction.
    """
    counts, free = np.broadcast_to(count, times.shape), sizes <= 0
    total = float((counts * times)[free].sum())
    times, sizes, counts = times[~free], sizes[~free], counts[~free]
    order = np.argsort(-times / sizes, kind="stable")
    times, sizes, counts = times[order], sizes[order], counts[order]
    before = np.cumsum(counts * sizes) - counts * sizes
    numbers = np.minimum(counts, np.maximum(0.0, room - before) / sizes)
    return total + float((numbers * times).sum())


def filled(sizes: FloatArray, room: float) -> float:
    """Return ``room``, reduced to a multiple of the size if all ``sizes`` are equal."""
    if len(set(sizes.tolist())) == 1 and sizes[0] > 0:
        return float(counts_within(room, sizes[0], inf) * sizes[0])
    return room


def span_that_holds(
    needed: float, limit: float, work: float, area: Callable[[float], float]
) -> float:
    """The shortest span T with ``area(T / 2)`` >= ``needed``, found by bisection and rounded down.

    ``needed``: the memory-time that ops need. ``area``: maps half the length of a span to an upper
    bound on the memory-time in the span. ``limit``: the maximum memory held at any moment.
    ``work``: the total time of the rank's ops.
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
    """Lower bound on the time from the rank's start to the end of its last B, by memory-time.

    Each microbatch of a kind holds M_B for at least ``turn + b``. The sum of the M_B's held is at
    most ``room``: the limit or, if all M_B are equal, the largest multiple of M_B within it. While
    a W runs, the sum is lower if the M_W of the W takes the place of some M_B. At time t after the
    start, the sum is at most the memory in :meth:`RankModel.area`. At time t before the end of the
    last B, it is at most the largest M_B plus t times the largest M_B / b. Near both ends, where
    these limits are below ``room``, W's are assumed to take no place.
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
    """The integral of min(limit, least + slope t) over t from 0 to ``time``."""
    if slope == inf:
        return limit * time
    rises = min(time, max(0.0, (limit - least) / slope)) if slope > 0 else time
    return rises * (least + slope * rises / 2) + (time - rises) * limit


def steps(limit: float, size: float, every: float, time: float) -> float:
    """The integral of min(limit, size (1 + floor(t / every))) over t from 0 to ``time``."""
    if every == 0 or size == 0:
        return limit * time
    most_held = limit / size  # 1 is held for a time of ``every``, then 2, ...
    steps = int(most_held if most_held * every <= time else time / every)
    area = size * every * steps * (steps + 1) / 2
    return area + (time - steps * every) * min(limit, size * (steps + 1))


def rate(size: float, time: float) -> float:
    """The memory taken or released per unit of time, ``size / time``.

    If ``time`` is 0, the rate is inf, or 0 if ``size`` is 0 as well.
    """
    return size / time if time > 0 else inf if size > 0 else 0.0
