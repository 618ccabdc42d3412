"""What microbatches hold on a stage with a rank of its own, for as long as they hold it, has room.

Memory is measured by *weights*: numbers phi(M_B), phi(M_W), ... of the sizes that sum to at most 1
for any that fit into the limit together. The sizes themselves, in limits, are such; so are, for any
whole n, floor((n + 1) x) / n of sizes x in limits (x where (n + 1) x is whole): dual feasible
functions, Fekete and Schepers, Math. Program. 91 (2001). They count the places for whole M_B's.

A microbatch that stays holds M_B from its F's start to its B's end, turn + b at least; one that is
recomputed m_r, then M_B for t_r + b; one that is offloaded M_B for f + t_o, m_o, M_B for t_o + b;
then each M_W for w. Up to the end of the last B the M_W's are left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.model.ops import FloatArray, OpKind

from ..core.linear_instance import LinearInstance
from .rank_model import ramp, rate, steps

WEIGHTS = 16  # n of the weights, at most
WHOLE = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Ways:
    """What a microbatch of a stage may become between F and B, (N,): first that it stays.

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
        again, kept = costs.again[:, stage], costs.kept[:, stage]
        wire = costs.durations[OpKind.O, stage]
        there = np.append(np.isfinite(again), np.isfinite(wire))
        wires = np.append(np.zeros(len(again)), wire)
        return cls(np.append(again, 0.0)[there], kept[there], wires[there])


@dataclass(frozen=True, slots=True, eq=False)
class MemoryTime:
    """From the rank's start to its end, or to that of its last B, at least the sum of ``needed``,
    by way, of its microbatches, and ``lost``, passes. Times are in a unit."""

    needed: list[float]
    lost: float
    until_last_b: bool


def memory_times(
    linear: LinearInstance, stage: int, ways: Ways, unit: float
) -> Iterator[MemoryTime]:
    """One for each measure of memory, and each end."""
    c, i = linear, stage
    limit, turn = float(c.limit[i]), float(c.round_trip[i])
    f, b, w = (float(each[i]) for each in (c.f, c.b, c.w))
    if limit <= 0 or c.microbatches * float(c.m_b[i]) <= limit:
        return
    out = ways.wire > 0
    whole = np.where(ways.again > 0, ways.again, np.where(out, f + 2 * ways.wire, 0.0))
    whole[ways.kept >= c.m_b[i]] = turn
    whole[0] = turn
    sizes = np.array([c.m_b[i], c.m_w[i], *ways.kept]) / limit
    for phi in _weights(sizes):
        m_b, m_w, kept = float(phi[0]), float(phi[1]), phi[2:]
        held = m_b * (whole + b) + kept * np.maximum(0.0, turn - whole)
        fall = max(rate(m_b, b + w), rate(m_w, w))
        for until_last_b in (False, True):
            half = c.microbatches * (f + b + (0.0 if until_last_b else w)) / 2
            start = half - steps(1.0, m_b, f, half)
            end = half - (steps(1.0, m_b, b, half) if until_last_b else ramp(1.0, m_b, fall, half))
            needed = held + (0.0 if until_last_b else m_w * w)
            yield MemoryTime((needed / unit).tolist(), (start + end) / unit, until_last_b)


def _weights(sizes: FloatArray) -> Iterator[FloatArray]:
    """The weights of sizes in limits, one or several, that differ."""
    seen = set()
    for n in range(WEIGHTS + 1):
        phi = sizes
        if n:
            places = (n + 1) * sizes
            floors = np.floor(places)
            whole = places - floors < WHOLE
            phi = np.where(whole, np.minimum(sizes, floors / n), floors / n)
        if phi[0] > 0 and tuple(phi.tolist()) not in seen:
            seen.add(tuple(phi.tolist()))
            yield phi
