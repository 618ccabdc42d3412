"""Recomputation and offload: activations that are given up for a while between F and B.

Ops of one (stage, microbatch) on its rank, in order::

    F ......... B        stays: M_B is held
    F ... R ... B        recomputed: ``m_r`` is held, from R's start on M_B; R takes ``t_r``
    F  O ... L  B        offloaded: M_B is held, from O's end to L's start ``m_o``

O and L run beside the rank's ops, as copies out to the host and copies back, one at a time each way
in the order of the list. Their places in the list say when memory changes, so that what a rank
holds depends on its order alone:

- O starts once F has ended and the copy before it. What is listed after it starts after it has
  ended.
- L starts once what is listed before it has ended and the copy before it. Of what follows its B
  alone waits for it.

Schedules without them are timed by :mod:`.simulator`, as fast as if there were none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..errors import InvalidScheduleError
from ..model.ops import KIND_MASK, FloatArray, IntArray, OpKind, fields_of
from ..model.problem import Problem
from ..model.schedule import Schedule
from .cost_tables import Costs

STAYS, RECOMPUTED, OFFLOADED = 0, 1, -1
"""Choices for a (stage, microbatch): the rows of what :class:`.cost_tables.Costs` has by choice."""

_F, _BW, _R, _O, _L = int(OpKind.F), int(OpKind.BW), int(OpKind.R), int(OpKind.O), int(OpKind.L)

Choice = npt.NDArray[np.int8]  # (S, M), one of these


def pulled(order: Sequence[IntArray]) -> bool:
    """Whether any op is an R, an O or an L."""
    return any(bool(((row & KIND_MASK) > _BW).any()) for row in order)


def choice_of(problem: Problem, order: Sequence[IntArray]) -> Choice:
    """The choice for each (stage, microbatch), read from the ops in ``order``.

    Raises InvalidScheduleError where that is not one thing, or the profile does not have it.
    """
    flat = np.concatenate(order)
    kind, stage, microbatch = fields_of(flat)
    counts = np.zeros((3, problem.stages, problem.microbatches), dtype=np.int64)
    for at, which in enumerate((_R, _O, _L)):
        chosen = kind == which
        np.add.at(counts[at], (stage[chosen], microbatch[chosen]), 1)
    again, out, back = counts
    wrong = (again + out > 1) | (out != back)
    lines = [
        f"stage {s}, microbatch {j}: expected at most one R, or one O and one L, "
        f"got {again[s, j]} R, {out[s, j]} O, {back[s, j]} L"
        for s, j in np.argwhere(wrong).tolist()
    ]
    durations = Costs.of(problem).durations
    for taken, which, lacks in ((again, _R, "t_r"), (out, _O, "m_o with a host_link")):
        lacking = np.isinf(durations[which]).reshape(problem.stages, -1).any(axis=1)
        stages = np.flatnonzero(taken.any(axis=1) & lacking)
        lines += [f"stage {s}: the profile has no {lacks} for it" for s in stages.tolist()]
    if lines:
        raise InvalidScheduleError(lines)
    return (again * RECOMPUTED + out * OFFLOADED).astype(np.int8)


def changes(costs: Costs) -> FloatArray:
    """Change of a rank's memory at ops by kind and stage, (7, S), or by microbatch as
    well, (7, S, M); nothing is recomputed here."""
    m_b, m_w, out = costs.m_b, costs.m_w, costs.kept[OFFLOADED]
    return np.stack([m_b, m_w - m_b, -m_w, -m_b, np.zeros_like(m_b), out - m_b, m_b - out])


def held(problem: Problem, order: Sequence[IntArray]) -> list[FloatArray]:
    """Memory of each rank from each of its ops on, (N,) each: its order alone decides it."""
    costs = Costs.of(problem)
    change, rows = changes(costs), []
    choice = choice_of(problem, order) if pulled(order) else None
    for row in order:
        kind, stage, microbatch = fields_of(row)
        axes = change.ndim
        steps = change[(kind, stage, microbatch)[:axes]]
        if choice is not None:
            before = np.maximum(choice[stage, microbatch], STAYS)  # O comes after F
            kept = costs.kept[(before, stage, microbatch)[:axes]]
            m_b = costs.m_b[(stage, microbatch)[: axes - 1]]
            steps = np.select([kind == _F, kind == _R], [kept, m_b - kept], steps)
        rows.append(np.cumsum(steps))
    return rows


def passed(schedule: Schedule, rank: int) -> FloatArray:
    """When the rank is past each of its ops, (N,), never falling: it goes on at once from an L."""
    timing, row = schedule.timing, schedule.order[rank]
    assert timing is not None
    return np.maximum.accumulate(np.where((row & KIND_MASK) == _L, 0.0, timing.end[rank]))
