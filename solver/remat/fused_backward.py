"""B and W as one op, where that takes less than one after the other: of whole stages, or of
neighbours.

Which are fused in the end annealing decides, for each microbatch (:mod:`..search.remat_moves`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pipeloom.ir.model.ops import KIND_MASK, STAGE_MASK, STAGE_SHIFT, IntArray, OpKind
from pipeloom.ir.model.problem import Problem

from ..core.relaxations import Mask, fusible, plain

_TO_BW = int(OpKind.BW) - int(OpKind.B)


def fused_whole(problem: Problem) -> Problem:
    """The problem without remat in which all B's of stages that gain by it take T_BW, and W's
    nothing."""
    bare = plain(problem)
    stages = tuple(
        replace(stage, t_b=whole.fused, t_w=0.0, m_w=0.0) if gains else stage
        for stage, whole, gains in zip(
            bare.profile.stages, problem.profile.stages, fusible(problem), strict=True
        )
    )
    return replace(bare, profile=replace(bare.profile, stages=stages))


def fused(problem: Problem, rows: tuple[IntArray, ...]) -> tuple[IntArray, ...]:
    """A schedule of ``problem`` from one of :func:`fused_whole`."""
    gains = fusible(problem)
    return tuple(_with_bw(row, _of(row, gains)) for row in rows)


def fused_neighbours(problem: Problem, rows: tuple[IntArray, ...]) -> tuple[IntArray, ...]:
    """The same order, where W follows its B at once and both take less as one op that op."""
    gains, to_w = fusible(problem), int(OpKind.W) - int(OpKind.B)
    result = []
    for row in rows:
        together = np.zeros(len(row), dtype=np.bool_)
        follows = (row[:-1] & KIND_MASK == OpKind.B) & (row[1:] == row[:-1] + to_w)
        together[:-1] |= follows
        together[1:] |= follows
        result.append(_with_bw(row, together & _of(row, gains)))
    return tuple(result)


def _of(row: IntArray, gains: Mask) -> Mask:
    return np.asarray(gains[row >> STAGE_SHIFT & STAGE_MASK])


def _with_bw(row: IntArray, chosen: Mask) -> IntArray:
    """B's that are chosen as BW's, W's that are chosen left out."""
    kind = row & KIND_MASK
    result = np.where(chosen & (kind == OpKind.B), row + _TO_BW, row)
    return np.asarray(result[~(chosen & (kind == OpKind.W))])
