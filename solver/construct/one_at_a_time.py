"""The trivial schedule: one microbatch after the other. Every problem has it."""

from __future__ import annotations

import numpy as np

from pipeloom.ir.model.ops import MICROBATCH_SHIFT, STAGE_SHIFT, OpKind
from pipeloom.ir.model.problem import Problem

from ..core.options import Order


def one_at_a_time(problem: Problem) -> Order:
    """Return the order in which each microbatch ends before the next one begins.

    It is one array of packed ops per rank. No order needs less memory.
    """
    owner = problem.owner
    stages = np.arange(problem.stages)
    back = np.repeat(stages[::-1], 2)
    stage = np.append(stages, back)
    kind = np.append(np.full(problem.stages, OpKind.F), np.tile([OpKind.B, OpKind.W], len(stages)))
    ops = (stage << STAGE_SHIFT | kind) + (
        np.arange(problem.microbatches)[:, None] << MICROBATCH_SHIFT
    )
    ranks = owner[stage].T.ravel()
    counts = np.bincount(ranks, minlength=problem.ranks)
    return tuple(np.split(ops.ravel()[np.argsort(ranks, kind="stable")], counts.cumsum()[:-1]))
