"""Bounds where microbatches go both ways: a rank runs different stages of different microbatches.

What a rank runs of a microbatch is a *visit*: F, B and W of one stage. The B of visit v begins at
least ``turn[v]`` after its F, as the microbatch passes all later stages and comes back, and nothing
else is known of where it is. The first op of a rank is an F, as B and W follow the F of their own
visit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.model.ops import FloatArray
from pipeloom.ir.model.problem import Problem

from ..core.tolerances import ROUNDING


@dataclass(frozen=True, slots=True, eq=False)
class Visits:
    """One rank's, every array by visit; ``limit``: its memory, with what is let pass for
    rounding."""

    f: FloatArray
    b: FloatArray
    w: FloatArray
    m_b: FloatArray
    m_w: FloatArray
    turn: FloatArray
    limit: float

    @property
    def work(self) -> float:
        return float((self.f + self.b + self.w).sum())


def visits(problem: Problem) -> Iterator[Visits]:
    """Of each rank that runs anything."""
    costs = Costs.of(problem)
    f, b, w = (costs.durations[kind][:, None] for kind in range(3))
    turn = _from(f + b + costs.into_f + costs.into_b) - b - costs.into_f
    columns = f, b, w, costs.m_b[:, None], costs.m_w[:, None]
    wide = [np.broadcast_to(column, turn.shape) for column in columns]
    for rank, limit in enumerate(costs.limit.tolist()):
        here = costs.owner == rank
        if here.any():
            f_, b_, w_, m_b, m_w = (array[here] for array in wide)
            yield Visits(f_, b_, w_, m_b, m_w, turn[here], limit * (1 + ROUNDING))


def _from(array: FloatArray) -> FloatArray:
    """The sums of each row and all below it."""
    return np.asarray(array[::-1].cumsum(axis=0)[::-1])


def first_and_last(problem: Problem) -> float:
    """Idle time of a rank before its first B and after its last F.

    *First.* Before its first B a rank has run F's alone, each of which still holds its M_B, so
    their time is at most what fits into the limit (:func:`_most`). That B begins no earlier than
    the least turn after the rank's start: its own F began no earlier than the rank did.

    *Last.* Once the last F has begun the rank holds its M_B, and beside it what is left to be run:
    M_B of each visit whose B has not begun, M_W of each whose W has not. Until the B of that last F
    the rank runs at most that F, and the B's and W's that fit into the rest of the limit.

    Both are apart, and add up, where the M_B of all visits together exceed the limit: then some F
    begins after a B has ended.
    """
    return max(v.work + _idle(v) for v in visits(problem))


def _idle(v: Visits) -> float:
    first = max(0.0, float(v.turn.min()) - _most(v.f, v.m_b, v.limit))
    work, size = np.concatenate([v.b + v.w, v.w]), np.concatenate([v.m_b, v.m_w])
    kinds = np.unique(np.stack([v.turn - v.f, v.m_b], axis=1), axis=0)
    last: float = min(
        max(0.0, turn - _most(work, size, v.limit - held)) for turn, held in kinds.tolist()
    )
    apart = float(v.m_b.sum()) > v.limit
    return first + last if apart else max(first, last)


def _most(time: FloatArray, size: FloatArray, room: float) -> float:
    """At least the most time of items whose sizes fit into ``room``: the last one is taken in
    part."""
    free = size <= 0
    total = float(time[free].sum())
    time, size = time[~free], size[~free]
    order = np.argsort(-time / size)
    taken = np.minimum(size[order], np.maximum(0.0, room - (size[order].cumsum() - size[order])))
    return total + float((taken * (time / size)[order]).sum())


def memory_time_both_ways(problem: Problem) -> float:
    """What visits hold for how long, against the limit times the span of their rank.

    A visit holds M_B from the start of its F to the end of its B, at least its turn and T_B, and
    M_W for T_W at least.
    """
    found = 0.0
    for v in visits(problem):
        held = float((v.m_b * (v.turn + v.b) + v.m_w * v.w).sum())
        if 0 < v.limit < np.inf:
            found = max(found, held / v.limit)
    return found
