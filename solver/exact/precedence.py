"""Precedences: the orders of two ops that hold in every solution of the formulation."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.model.ops import OpKind
from pipeloom.ir.model.problem import Problem

from ..core.tolerances import ROUNDING

BoolArray = npt.NDArray[np.bool_]
KINDS = (OpKind.F, OpKind.B, OpKind.W)


@dataclass(frozen=True, slots=True)
class Dependency:
    """``start[after] >= end[before] + delay``: indices of ops, the delay in the profile's unit."""

    before: int
    after: int
    delay: float


def index(costs: Costs, kind: OpKind, stage: int, k: int) -> int:
    """The index of the k-th op of its kind and stage."""
    stages, microbatches = costs.owner.shape
    return int((kind * stages + stage) * microbatches + k)


def dependencies_of(costs: Costs) -> tuple[Dependency, ...]:
    """The dependencies of all ops: within a microbatch, and on neighbouring stages."""
    stages, microbatches = costs.owner.shape
    found = []
    for s in range(stages):
        for k in range(microbatches):
            f, b, w = (index(costs, kind, s, k) for kind in KINDS)
            found += [Dependency(f, b, 0.0), Dependency(b, w, 0.0)]
            if s > 0:
                source = index(costs, OpKind.F, s - 1, k)
                found.append(Dependency(source, f, float(costs.into_f[s, k])))
            if s + 1 < stages:
                source = index(costs, OpKind.B, s + 1, k)
                found.append(Dependency(source, b, float(costs.into_b[s, k])))
    return tuple(found)


def precedes_of(problem: Problem, costs: Costs, dependencies: tuple[Dependency, ...]) -> BoolArray:
    """All precedences as a matrix, (N, N), transitively closed: the row's op comes first."""
    stages, microbatches = costs.owner.shape
    matrix = np.zeros((3 * stages * microbatches,) * 2, dtype=np.bool_)
    for dependency in dependencies:
        matrix[dependency.before, dependency.after] = True
    for i in range(len(matrix)):
        if (i + 1) % microbatches:
            matrix[i, i + 1] = True
    for rank in range(problem.ranks):
        stages_here = problem.placement.stages_of(rank)
        if len(stages_here) == 1 and math.isfinite(costs.limit[rank]):
            _add_memory(matrix, costs, stages_here[0], float(costs.limit[rank]))
    for i in reversed(_one_at_a_time(costs)):
        matrix[i] |= matrix[matrix[i]].any(axis=0)
    return matrix


def _one_at_a_time(costs: Costs) -> list[int]:
    """The indices of all ops, one microbatch after the other: it keeps all precedences."""
    stages, microbatches = costs.owner.shape
    return [
        index(costs, kind, s, k)
        for k in range(microbatches)
        for kind in KINDS
        for s in (range(stages) if kind is OpKind.F else reversed(range(stages)))
    ]


def _add_memory(matrix: BoolArray, costs: Costs, stage: int, limit: float) -> None:
    """Add the B(s, l) and W(s, l) that must run before F(s, k) for memory (one stage on the rank).

    If b B's and w <= b W's run before F(s, k), the rank holds (k + 1) M_B - b (M_B - M_W) - w M_W.
    So b is at least what is needed with w = b, and w at least what is needed with b = k.
    """
    room = limit * (1 + 2 * ROUNDING)
    m_b, m_w = float(costs.m_b[stage]), float(costs.m_w[stage])
    for k in range(1, costs.owner.shape[1]):
        backwards = _fewest_freed(k, (k + 1) * m_b, m_b, room)
        weights = _fewest_freed(k, m_b + k * m_w, m_w, room)
        for kind, needed in ((OpKind.B, backwards), (OpKind.W, weights)):
            if needed:
                before = index(costs, kind, stage, needed - 1)
                matrix[before, index(costs, OpKind.F, stage, k)] = True


def _fewest_freed(most: int, held: float, freed: float, room: float) -> int:
    """The least n <= ``most`` with ``held - n * freed <= room``; ``most`` if there is none."""
    return next((n for n in range(most) if held - n * freed <= room), most)
