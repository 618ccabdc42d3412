"""The arrays that bounds and search work on where every stage has a rank of its own."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.model.ops import FloatArray, IntArray
from pipeloom.ir.model.placement import Passing
from pipeloom.ir.model.problem import Objective, Problem

from .tolerances import ROUNDING, counts_within


class LinearInstance(NamedTuple):
    """S stages, each on a rank of its own; every array is by stage, shape (S,). Kernels take it.

    ``f``, ``b``, ``w``: T_F, T_B, T_W. ``limit``: of the stage's rank, rounding included.
    ``capacity``: how many microbatches' M_B fit in it, at most M.
    ``down[i]``: delay of an activation from stage i to i+1; ``up[i]``: of a gradient from i+1 to i
    (both 0 at the last stage).
    ``round_trip``: R_i, the least time from a microbatch's F starting on stage i to its B starting
    there: f_i + sum over k > i of f_k + b_k and the delays between.
    ``offset``: the earliest start of a stage's first op after stage 0's.
    """

    f: FloatArray
    b: FloatArray
    w: FloatArray
    m_b: FloatArray
    m_w: FloatArray
    limit: FloatArray
    down: FloatArray
    up: FloatArray
    capacity: IntArray
    round_trip: FloatArray
    offset: FloatArray
    ranks: IntArray
    microbatches: int

    @classmethod
    def of(cls, problem: Problem) -> LinearInstance | None:
        """None where a rank has several stages, or a stage several ranks."""
        owners = problem.placement.owners
        if problem.placement.passing is not Passing.ACTIVATIONS or len(set(owners)) < len(owners):
            return None
        costs = Costs.of(problem)
        f, b, w = costs.durations[:3]
        down = np.append(costs.into_f[1:, 0], 0.0)
        up = np.append(costs.into_b[:-1, 0], 0.0)
        limit = costs.limit[list(owners)] * (1 + ROUNDING)
        ways = (down + up)[:-1] + f[1:] + b[1:]
        return cls(
            microbatches=problem.microbatches,
            f=f,
            b=b,
            w=w,
            m_b=costs.m_b,
            m_w=costs.m_w,
            limit=limit,
            capacity=counts_within(limit, costs.m_b, problem.microbatches).astype(np.int64),
            down=down,
            up=up,
            round_trip=f + np.append(np.cumsum(ways[::-1])[::-1], 0.0),
            offset=np.append(0.0, np.cumsum((f + down)[:-1])),
            ranks=np.array(owners),
        )

    @property
    def stages(self) -> int:
        return len(self.f)

    def lags(self, objective: Objective) -> FloatArray:
        """The cost less the span that it leaves each stage: 0, or ``offset`` for a makespan."""
        return self.offset if objective is Objective.MAKESPAN else np.zeros(self.stages)

    @property
    def work(self) -> FloatArray:
        return self.microbatches * (self.f + self.b + self.w)
