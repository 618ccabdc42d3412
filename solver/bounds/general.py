"""Bounds that hold anywhere: the busiest rank's work, and one microbatch on its way."""

from __future__ import annotations

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.model.ops import FloatArray
from pipeloom.ir.model.problem import Problem


def work(problem: Problem) -> float:
    """The busiest rank.

    Proof: a rank runs one op at a time, so it spans at least the summed duration of its ops.
    """
    return float(busy(problem).max())


def busy(problem: Problem) -> FloatArray:
    """The summed duration of each rank's ops, shape (P,)."""
    costs = Costs.of(problem)
    per_pair = np.broadcast_to(costs.durations[:3].sum(axis=0)[:, None], costs.owner.shape)
    return np.bincount(
        costs.owner.ravel(), weights=per_pair.ravel(), minlength=problem.ranks
    ).astype(np.float64)


def critical_path(problem: Problem) -> float:
    """One microbatch on its way through all stages and back.

    Proof: of microbatch j, F(0) to F(S-1), B(S-1) to B(0) and W(0) run one after the other with
    the delays between. This is a makespan. It is the span of the rank of (0, j), which runs both
    the first and the last of them, and so at most the period too.
    """
    costs = Costs.of(problem)
    delays = (costs.into_f + costs.into_b).sum(axis=0)
    return float(costs.durations[:2].sum() + costs.durations[2, 0] + delays.max())
