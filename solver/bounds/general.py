"""Bounds for every placement: the work of the busiest rank, and the critical path."""

from __future__ import annotations

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.model.ops import FloatArray
from pipeloom.ir.model.placement import Passing
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.units import counted, duration

from ..core.bound import Bound
from ..core.tolerances import ROUNDING


def work(problem: Problem) -> Bound:
    """The work bound: the busiest rank runs one op at a time, so its span is at least its work.

    The work of a rank is the sum of its op times.
    """
    of_ranks = busy(problem)
    rank, most = int(of_ranks.argmax()), float(of_ranks.max())

    def numbers() -> list[str]:
        lines = [f"rank {rank} computes for {duration(most)} and runs one op at a time"]
        mean = float(of_ranks.mean())
        if mean < most * (1 - ROUNDING) and problem.placement.passing is Passing.ACTIVATIONS:
            lines.append(
                "no order helps, only another cut or placement: if it shared the work equally, "
                f"each rank would compute for {duration(mean)}"
            )
        return lines

    return Bound(most, "work", "the busiest rank runs one op at a time", rank, numbers)


def busy(problem: Problem) -> FloatArray:
    """The work of each rank, the sum of its op times, shape (P,)."""
    costs = Costs.of(problem)
    of_pairs = costs.durations[:3].sum(axis=0).reshape(problem.stages, -1)
    per_op = np.broadcast_to(of_pairs, costs.owner.shape)
    return np.bincount(costs.owner.ravel(), weights=per_op.ravel(), minlength=problem.ranks).astype(
        np.float64
    )


def critical_path(problem: Problem) -> Bound:
    """The critical path bound: the minimum time of one microbatch through all stages and back.

    Proof: F(0) to F(S-1), B(S-1) to B(0) and W(0) of a microbatch j run one after the other, with
    the delays between them. So the sum of their times and delays is a lower bound on the makespan.
    The rank of (0, j) runs both the first and the last of these ops, so its span, and hence the
    period, is at least that sum as well.
    """
    costs = Costs.of(problem)
    delays = (costs.into_f + costs.into_b).sum(axis=0)
    computes = costs.durations[:2].sum(axis=(0, 1)) + costs.durations[2, 0]
    value = float((computes + delays).max())
    j = int((computes + delays).argmax())
    return Bound(
        value,
        "critical-path",
        "one microbatch passes all stages and comes back",
        numbers=lambda: [
            f"a single microbatch passes {counted(problem.stages, 'stage')} and comes back, "
            f"{duration(float(delays[j]))} of it on links"
        ],
    )
