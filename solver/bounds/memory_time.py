"""Memory-time constraints for a stage with a rank of its own.

*Memory-time* is the memory that microbatches hold times how long they hold it. It is at most memory
limit times span.

Memory is measured by *weights*: numbers phi(M_B), phi(M_W), ... for the sizes, such that those of
any set that fits into the limit sum to at most 1. One choice is the size divided by the limit, x.
Others are the dual feasible functions floor((n + 1) x) / n for any integer n (and x itself if (n +
1) x is an integer): Fekete and Schepers, Math. Program. 91 (2001).

A further measure counts the places for whole M_B's. Fewer places are left while a W runs, which
holds M_W, or the F of a microbatch that will be recomputed, which holds what is kept of it. Only
one op runs at a time, so such an op weighs, while it runs, the places that it takes.

A microbatch that stays holds M_B from the start of its F to the end of its B, at least turn + b.
One that is recomputed holds m_r, then M_B for t_r + b. One that is offloaded holds M_B for f + t_o,
then m_o, then M_B for t_o + b. Each then holds M_W for w. In the constraint that ends with the last
B, the M_W of later W's are left out.

The ramps at both ends are lost: at time t after the start, the memory held is at most M_B (1 + t /
f), rounded; at time t before the end, whatever is held must still run its B and W in that time.
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

WEIGHTS = 16  # the largest n of the dual feasible functions
WHOLE = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Ways:
    """The choices for a microbatch of a stage between F and B, shape (N,); the first is to stay.

    ``again``: time of the R; ``kept``: memory held while the microbatch waits; ``wire``: time of a
    copy in each direction. Times are 0 if the choice has no R or no copies.
    """

    again: FloatArray
    kept: FloatArray
    wire: FloatArray

    @classmethod
    def of(cls, costs: Costs, stage: int) -> Self:
        again = np.array([0.0, costs.durations[OpKind.R, stage], 0.0])
        wire = np.array([0.0, 0.0, costs.durations[OpKind.O, stage]])
        there = np.isfinite(again) & np.isfinite(wire)
        return cls(again[there], costs.kept[there, stage], wire[there])

    def within(self, time: float) -> Self:
        """The choices without those that take longer than ``time`` or keep no less than M_B.

        No bound needs them, and their numbers may be outside the range of a solver.
        """
        use = (self.kept < self.kept[0]) & (self.again <= time) & (self.wire <= time)
        use[0] = True
        return type(self)(self.again[use], self.kept[use], self.wire[use])


@dataclass(frozen=True, slots=True, eq=False)
class MemoryTime:
    """One constraint on the span from a rank's start to its end, or to the end of its last B.

    The span is at least the sum of ``needed[choice]`` over the microbatches, plus ``early`` for
    each W that runs until then, plus ``lost``, the loss at both ramps. Times are in the unit of the
    MILP.
    """

    needed: list[float]
    early: float
    lost: float
    until_last_b: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Measure:
    """Weights of M_B, of M_W and of what each choice keeps, ``kept``, shape (N,).

    ``run_f``, (N,), and ``run_w``: the additional weight of an F and of a W while it runs.
    """

    m_b: float
    m_w: float
    kept: FloatArray
    run_f: FloatArray
    run_w: float


def memory_times(
    linear: LinearInstance, stage: int, ways: Ways, unit: float
) -> Iterator[MemoryTime]:
    """Yield the constraints, one for each measure of memory and each end (last op, last B)."""
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
    """The measures of ``sizes``: M_B, M_W and what each choice keeps, divided by the limit."""
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
