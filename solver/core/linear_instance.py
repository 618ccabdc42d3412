"""The arrays of a problem in which every stage has a rank of its own, for bounds and search."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.model.ops import FloatArray, IntArray
from pipeloom.ir.model.placement import Passing
from pipeloom.ir.model.problem import Objective, Problem

from .tolerances import ROUNDING, counts_within


def each_alone(problem: Problem) -> bool:
    """Whether activations are passed and each stage has a rank of its own."""
    owners = problem.placement.owners
    return problem.placement.passing is Passing.ACTIVATIONS and len(set(owners)) == len(owners)


class LinearInstance(NamedTuple):
    """The arrays of S stages, each on a rank of its own; all arrays are by stage, shape (S,).

    Kernels accept it. ``f``, ``b``, ``w``: T_F, T_B, T_W. ``m_b``, ``m_w``: M_B, M_W. ``limit``:
    memory limit of the stage's rank, including the tolerance for rounding. ``capacity``: the number
    of M_B that fit in the limit, at most M. ``down[i]``: delay of an activation from stage i to
    i+1; ``up[i]``: delay of a gradient from i+1 to i (both 0 at the last stage). ``round_trip``:
    R_i, the minimum time from the start of a microbatch's F on stage i to the start of its B there:
    f_i + sum over k > i of (f_k + b_k) and the delays between. ``offset``: the earliest start of
    the stage's first op, relative to that of stage 0. ``ranks``: the rank of each stage.
    ``microbatches``: M.
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
        """The arrays of ``problem``, or None if some stage shares its rank with another.

        Also None if weights are passed.
        """
        if not each_alone(problem):
            return None
        costs, owners = Costs.of(problem), problem.placement.owners
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
        """For each stage, the minimum of the cost minus the span of its rank, shape (S,).

        It is 0 for the period. For the makespan, it is ``offset``, before which the stage cannot
        begin.
        """
        return self.offset if objective is Objective.MAKESPAN else np.zeros(self.stages)

    @property
    def work(self) -> FloatArray:
        """The total time of the ops of each stage, shape (S,)."""
        return self.microbatches * (self.f + self.b + self.w)
