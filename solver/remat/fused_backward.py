"""Fused backwards for adjacent B's and W's, where BW is faster than B and W.

Annealing then decides for each microbatch (:mod:`..search.kernels.remat_moves`).
"""

from __future__ import annotations

import numpy as np

from pipeloom.ir.model.ops import KIND_MASK, STAGE_MASK, STAGE_SHIFT, IntArray, OpKind
from pipeloom.ir.model.problem import Problem

from ..core.options import Order
from ..core.relaxations import Mask, fusible

_TO_BW = int(OpKind.BW) - int(OpKind.B)


def fused_neighbours(problem: Problem, rows: Order) -> Order:
    """Return the order with a BW in place of each B that is directly followed by its W.

    The W is removed. Stages where BW is no faster than B and W are left as they are.
    """
    gains, to_w = fusible(problem), int(OpKind.W) - int(OpKind.B)
    result = []
    for row in rows:
        together = np.zeros(len(row), dtype=np.bool_)
        follows = (row[:-1] & KIND_MASK == OpKind.B) & (row[1:] == row[:-1] + to_w)
        together[:-1] |= follows
        together[1:] |= follows
        result.append(_with_bw(row, together & _at_stages(row, gains)))
    return tuple(result)


def _at_stages(row: IntArray, gains: Mask) -> Mask:
    return np.asarray(gains[row >> STAGE_SHIFT & STAGE_MASK])


def _with_bw(row: IntArray, chosen: Mask) -> IntArray:
    """Return the row with each chosen B replaced by a BW, and each chosen W removed.

    ``chosen``: for each op of ``row``, whether it is a B or a W to fuse.
    """
    kind = row & KIND_MASK
    result = np.where(chosen & (kind == OpKind.B), row + _TO_BW, row)
    return np.asarray(result[~(chosen & (kind == OpKind.W))])
