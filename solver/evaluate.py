"""Costs of many orders of one problem: the simulator's kernel with its arrays made once."""

from __future__ import annotations

import numpy as np

from pipeloom.ir.costs import Costs
from pipeloom.ir.ops import IntArray
from pipeloom.ir.problem import Objective, Problem
from pipeloom.ir.simulate import run_kernel


class Evaluator:
    """``cost(order)`` of flat orders of packed ops, rank after rank, split at ``offsets``."""

    def __init__(self, problem: Problem, offsets: IntArray) -> None:
        self.problem = problem
        self.offsets = offsets
        self.costs = Costs.of(problem)
        size = int(offsets[-1])
        self._start, self._end = np.empty(size), np.empty(size)
        self._peak = np.empty(problem.ranks)
        self._f_end = np.empty((problem.stages, problem.microbatches))
        self._b_end = np.empty_like(self._f_end)
        self._position = np.empty(problem.ranks, dtype=np.int64)

    def cost(self, order: IntArray) -> float:
        """Period or makespan, as the problem's objective says; infinite where it cannot run."""
        c = self.costs
        runs = run_kernel(
            order,
            self.offsets,
            c.durations,
            c.owner,
            c.into_f,
            c.into_b,
            c.m_b,
            c.m_w,
            self._start,
            self._end,
            self._peak,
            self._f_end,
            self._b_end,
            self._position,
        )
        if not runs:
            return float("inf")
        used = self.offsets[1:] > self.offsets[:-1]
        first, last = self._start[self.offsets[:-1][used]], self._end[self.offsets[1:][used] - 1]
        if self.problem.objective is Objective.PERIOD:
            return float((last - first).max())
        return float(last.max() - first.min())
