"""Removes R's of microbatches for which memory has room from F to B.

If a whole stage was recomputed, or more memory has become free since, some microbatches can hold
their M_B from F to B without moving any op; each R removed shortens the schedule. Of the intervals
from F to B the ones that end first are taken first. If all have the same size, this greedy rule
keeps the most (interval scheduling: Carlisle and Lloyd, Discrete Appl. Math. 59, 1995).
"""

from __future__ import annotations

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.cost.remat import RECOMPUTED, held
from pipeloom.ir.model.ops import FloatArray, IntArray, OpKind, fields_of
from pipeloom.ir.model.problem import Problem

from ..core.options import Order
from ..core.tolerances import ROUNDING


def kept(problem: Problem, rows: Order) -> Order:
    """The order without the R's of microbatches for which there is room."""
    costs, memory = Costs.of(problem), held(problem, rows)
    limits = [limit * (1 + ROUNDING) for limit in problem.memory_limit]
    return tuple(map(_kept, [costs] * len(rows), rows, memory, limits))


def _kept(costs: Costs, row: IntArray, memory: FloatArray, limit: float) -> IntArray:
    kind, stage, microbatch = fields_of(row)
    pairs = list(zip(stage.tolist(), microbatch.tolist(), strict=True))
    forward = {pairs[at]: at for at in np.flatnonzero(kind == OpKind.F).tolist()}
    more = costs.m_b[stage] - costs.kept[RECOMPUTED, stage]
    free, runs = limit - memory, np.ones(len(row), dtype=np.bool_)
    for at in np.flatnonzero(kind == OpKind.R).tolist():
        since = forward[pairs[at]]
        if free[since:at].min() >= more[at]:
            free[since:at] -= more[at]
            runs[at] = False
    return row[runs]
