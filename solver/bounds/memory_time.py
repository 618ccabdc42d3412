"""Memory-time constraints on the span of a stage with a rank of its own.

*Memory-time* is the memory that microbatches hold, integrated over time. What all microbatches need
is at most the memory limit times the span, less what the limit leaves unused at both ends.

**Measures.** A measure assigns a weight phi(M_B), phi(M_W), ... to each size, such that the weights
of any set of sizes that fits into the limit sum to at most 1. One choice is the size divided by the
limit.

The other measure counts places, each of which can take one whole M_B. Fewer M_B's fit while a W
runs, which holds M_W, or while the F of a microbatch runs that will be recomputed, which holds m_r.
As only one op runs at a time, such an op is charged, for its own duration, with the places that M_W
or m_r occupies.

**Needs.** Let turn be the minimum time from the start of a microbatch's F to the start of its B. A
microbatch that stays in memory holds M_B from the start of its F to the end of its B, for at least
turn + b. One that is recomputed holds m_r, then M_B for t_r + b. One that is offloaded holds M_B
for f + t_o, then m_o, then M_B for t_o + b. Each then holds M_W for w. In the constraint for the
span that ends with the last B, the M_W of W's that run later are left out.

**Ramps.** Some memory is unused at both ends of the span: at time t after its start, the memory
held is at most M_B (1 + t / f), with t / f rounded down; at time t before its end, whatever is held
must still run its B and W in that time.
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


@dataclass(frozen=True, slots=True, eq=False)
class Ways:
    """The N choices for a microbatch of a stage between its F and its B, as arrays of shape (N,).

    The first choice is to stay in memory; the others, if the stage has them, are recomputation and
    offload. ``again``: the time of the choice's R, or 0 without an R. ``kept``: the memory that the
    microbatch holds while it waits. ``wire``: the time of a copy to the host or back, or 0 without
    copies.
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
        """The first choice, and each further choice that may be of use within a span of ``time``.

        A choice may be of use if its R, or each of its copies, takes at most ``time``, and it keeps
        less than M_B. The choices left out affect no bound, and their times may be too large for a
        MILP solver.
        """
        use = (self.kept < self.kept[0]) & (self.again <= time) & (self.wire <= time)
        use[0] = True
        return type(self)(self.again[use], self.kept[use], self.wire[use])


@dataclass(frozen=True, slots=True, eq=False)
class MemoryTime:
    """A lower bound on the span of a rank or, if ``until_last_b``, on a part of the span.

    That part ends when the last B ends. The span (or the part) is at least the sum of ``lost``;
    ``needed[k]`` for each microbatch with choice k, an index in :class:`Ways`; and ``early`` for
    each W that runs in the span (or in the part). ``lost``: the time lost at both ends, where the
    limit cannot be used. Times are in the unit that :func:`memory_times` was given.
    """

    needed: list[float]
    early: float
    lost: float
    until_last_b: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Measure:
    """A measure of memory, which gives each size a weight.

    The weights of sizes that fit into the limit together sum to at most 1. ``m_b``, ``m_w``: the
    weights of M_B and M_W. ``kept``: for each choice, the weight of the memory that it keeps, shape
    (N,). ``run_f``: for each choice, the additional weight of an F while it runs, shape (N,).
    ``run_w``: the additional weight of a W while it runs.
    """

    m_b: float
    m_w: float
    kept: FloatArray
    run_f: FloatArray
    run_w: float


def memory_times(
    linear: LinearInstance, stage: int, ways: Ways, unit: float
) -> Iterator[MemoryTime]:
    """Yield memory-time constraints on the span of a stage.

    Each measure of memory gives two: one on the whole span, which ends with the stage's last op,
    and one on the part of the span that ends with the last B. There are none if all microbatches
    fit in memory. ``ways``: the choices for the stage's microbatches. ``unit``: the unit of times
    in the result, such as the ceiling, as a time in the unit of the profile.
    """
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
    """Yield measures of memory for a stage: a count of whole M_B's, and the sizes themselves.

    ``sizes``: M_B, M_W and the N sizes ``ways.kept``, each divided by the limit, shape (2 +
    N,); M_B is greater than 0. ``ways``: the choices for the stage's microbatches.
    """
    nothing = np.zeros(len(ways.kept))
    if places := float(counts_within(1.0, sizes[0], np.inf)):
        beside = 1.0 - counts_within(1.0 - sizes[1:], sizes[0], np.inf) / places
        run_f = np.where(ways.again > 0, beside[1:], 0.0)
        run_f[ways.kept >= ways.kept[0]] = 0.0
        yield _Measure(1.0 / places, 0.0, nothing, run_f, float(beside[0]))
    yield _Measure(float(sizes[0]), float(sizes[1]), sizes[2:], nothing, 0.0)
