"""Recomputation and offload: activations that do not occupy device memory all the time from F to B.

The ops of one (stage, microbatch) on its rank, in order::

    F ......... B        stays: M_B is held from F to B
    F ... R ... B        recomputed: ``m_r`` is held until R starts, then M_B; R takes ``t_r``
    F  O ... L  B        offloaded: M_B is held, except from the end of O to the start of L: ``m_o``

O and L are copies to the host and back, which overlap with the rank's other ops. In each direction,
there is one copy at a time, in the order of the rank's list of ops. Memory changes at the positions
of O and L in the list, so the memory that a rank holds depends only on its order:

- An O starts when its F and the previous O have ended. Ops listed after the O start when it has
  ended.
- An L starts when all ops listed before it, except L's, and the previous L have ended. Of the ops
  listed after the L, only its B and later L's wait for it.
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
"""The choices for a (stage, microbatch); they index the rows of :attr:`.cost_tables.Costs.kept`."""

_F, _BW, _R, _O, _L = int(OpKind.F), int(OpKind.BW), int(OpKind.R), int(OpKind.O), int(OpKind.L)

Choice = npt.NDArray[np.int8]  # (S, M): STAYS, RECOMPUTED or OFFLOADED


def pulled(order: Sequence[IntArray]) -> bool:
    """Whether any op in ``order``, the packed ops of each rank, is an R, an O or an L."""
    return any(bool(((row & KIND_MASK) > _BW).any()) for row in order)


def choice_of(problem: Problem, order: Sequence[IntArray]) -> Choice:
    """The choice (stays, recomputed, offloaded) for each (stage, microbatch), (S, M).

    It follows from the R, O and L ops in ``order``. Raises InvalidScheduleError if a microbatch has
    a wrong combination of them, or if the profile lacks the times or sizes that they need.
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
    """The change of a rank's memory by each kind of op on each stage, (7, S).

    The shape is (7, S, M) if microbatches differ. For F, the change is that of a microbatch that is
    not recomputed, and for R it is 0; :func:`held` corrects both for recomputed microbatches.
    """
    m_b, m_w, out = costs.m_b, costs.m_w, costs.kept[OFFLOADED]
    return np.stack([m_b, m_w - m_b, -m_w, -m_b, np.zeros_like(m_b), out - m_b, m_b - out])


def held(problem: Problem, order: Sequence[IntArray]) -> list[FloatArray]:
    """The memory that each rank holds after each of its ops has changed it, one array per rank.

    It depends only on the order, not on times.
    """
    costs = Costs.of(problem)
    change, rows = changes(costs), []
    choice = choice_of(problem, order) if pulled(order) else None
    for row in order:
        kind, stage, microbatch = fields_of(row)
        axes = change.ndim
        steps = change[(kind, stage, microbatch)[:axes]]
        if choice is not None:
            before = np.maximum(choice[stage, microbatch], STAYS)  # offload frees memory only at O
            kept = costs.kept[(before, stage, microbatch)[:axes]]
            m_b = costs.m_b[(stage, microbatch)[: axes - 1]]
            steps = np.select([kind == _F, kind == _R], [kept, m_b - kept], steps)
        rows.append(np.cumsum(steps))
    return rows


def passed(schedule: Schedule, rank: int) -> FloatArray:
    """The time in ms when ``rank`` has passed each of its N ops, (N,), non-decreasing.

    A rank has passed an op when this op and all earlier ops have ended, except L's, for which it
    does not wait.
    """
    timing, row = schedule.timing, schedule.order[rank]
    assert timing is not None
    return np.maximum.accumulate(np.where((row & KIND_MASK) == _L, 0.0, timing.end[rank]))
