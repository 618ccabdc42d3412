"""The memory that microbatches hold on a stage with a rank of its own, times their time, has room.

Memory is measured by *weights*: numbers phi(M_B), phi(M_W), ... of the sizes that sum to at most 1
for any that fit into the limit together. The sizes themselves, in limits, are such; so are, for any
whole n, floor((n + 1) x) / n of sizes x in limits (x where (n + 1) x is whole): dual feasible
functions, Fekete and Schepers, Math. Program. 91 (2001).

The places for whole M_B's alone are counted, too: there are fewer while a W runs, whose M_W is held
beside them, or the F of a microbatch that will be recomputed, beside what it keeps. One op runs at
a time, so each of them weighs what it takes of the places.

A microbatch that stays holds M_B from its F's start to its B's end, turn + b at least; one that is
recomputed m_r, then M_B for t_r + b; one that is offloaded M_B for f + t_o, m_o, M_B for t_o + b;
then each M_W for w. Up to the end of the last B the M_W's of the W's to come are left out. What is
held t after the start is at most M_B and t M_B / f, rounded; t before the end, what is to run
until then needs its time, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.model.ops import FloatArray, OpKind

from ..core.linear_instance import LinearInstance
from ..core.tolerances import counts_within
from .rank_model import ramp, rate, steps

WEIGHTS = 16  # n of the weights, at most
WHOLE = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Ways:
    """The ways of a microbatch of a stage between F and B, (N,): first to stay.

    ``again``: time of its R; ``kept``: memory that it holds while it waits; ``wire``: time of its
    copy, each way. 0 where there is none.
    """

    again: FloatArray
    kept: FloatArray
    wire: FloatArray

    @classmethod
    def staying(cls, m_b: float) -> Self:
        return cls(np.zeros(1), np.array([m_b]), np.zeros(1))

    @classmethod
    def of(cls, costs: Costs, stage: int) -> Self:
        again = np.array([0.0, costs.durations[OpKind.R, stage], 0.0])
        wire = np.array([0.0, 0.0, costs.durations[OpKind.O, stage]])
        there = np.isfinite(again) & np.isfinite(wire)
        return cls(again[there], costs.kept[there, stage], wire[there])

    def within(self, time: float) -> Self:
        """Without those that take longer than ``time``, or keep no less than what stays does,
        which no bound needs: their numbers are beyond what a solver takes."""
        use = (self.kept < self.kept[0]) & (self.again <= time) & (self.wire <= time)
        use[0] = True
        return type(self)(self.again[use], self.kept[use], self.wire[use])


@dataclass(frozen=True, slots=True, eq=False)
class MemoryTime:
    """From the rank's start to its end, or to that of its last B, at least the sum of ``needed``,
    by way, of its microbatches, ``early`` of each W until then, and ``lost`` passes. Times are in a
    unit."""

    needed: list[float]
    early: float
    lost: float
    until_last_b: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Measure:
    """Weights of M_B, M_W and of what ways keep, (N,); ``run_f``, (N,), ``run_w``: what an F and a
    W weigh more while they run."""

    m_b: float
    m_w: float
    kept: FloatArray
    run_f: FloatArray
    run_w: float


def memory_times(
    linear: LinearInstance, stage: int, ways: Ways, unit: float
) -> Iterator[MemoryTime]:
    """One for each measure of memory, and each end."""
    c, i = linear, stage
    limit, turn = float(c.limit[i]), float(c.round_trip[i])
    f, b, w = (float(each[i]) for each in (c.f, c.b, c.w))
    if limit <= 0 or c.microbatches * float(c.m_b[i]) <= limit:
        return
    whole = ways.again + np.where(ways.wire > 0, f + 2 * ways.wire, 0.0)
    whole[ways.kept >= c.m_b[i]] = turn
    sizes = np.array([c.m_b[i], c.m_w[i], *ways.kept]) / limit
    for of in _measures(sizes, ways):
        held = of.m_b * (whole + b) + of.kept * np.maximum(0.0, turn - whole) + of.run_f * f
        early = (of.m_w + of.run_w) * w
        room = 1.0 - max(of.run_w, float(of.run_f.max()))
        for until_last_b in (False, True):
            half = c.microbatches * (f + b + (0.0 if until_last_b else w)) / 2
            last = b if until_last_b else b + w
            fall = max(rate(of.m_b, last), rate(of.m_w, w))
            lost = 2 * room * half - steps(room, of.m_b, f, half)
            if of.m_w > 0:
                lost -= ramp(room, of.m_b, fall, half)
            else:
                lost -= steps(room, of.m_b, last, half)
            yield MemoryTime((held / unit).tolist(), early / unit, lost / unit, until_last_b)


def _measures(sizes: FloatArray, ways: Ways) -> Iterator[_Measure]:
    """The measures of sizes in limits: of M_B, of M_W and of what ways keep."""
    nothing = np.zeros(len(ways.kept))
    places = float(counts_within(1.0, sizes[0], np.inf)) if sizes[0] > 0 else 0.0
    if places:
        beside = 1.0 - counts_within(1.0 - sizes[1:], sizes[0], np.inf) / places
        run_f = np.where(ways.again > 0, beside[1:], 0.0)
        run_f[ways.kept >= ways.kept[0]] = 0.0
        yield _Measure(1.0 / places, 0.0, nothing, run_f, float(beside[0]))
    seen = set()
    for n in range(WEIGHTS + 1):
        phi = sizes
        if n:
            parts = (n + 1) * sizes
            floors = np.floor(parts)
            whole = parts - floors < WHOLE
            phi = np.where(whole, np.minimum(sizes, floors / n), floors / n)
        if phi[0] > 0 and tuple(phi.tolist()) not in seen:
            seen.add(tuple(phi.tolist()))
            yield _Measure(float(phi[0]), float(phi[1]), phi[2:], nothing, 0.0)
