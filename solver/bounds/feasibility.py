"""The smallest memory limits for which a problem has a schedule."""

from __future__ import annotations

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.errors import InfeasibleError
from pipeloom.ir.model.ops import FloatArray
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.units import sufficient_size, unit_meant

from ..core.relaxations import least_kept
from ..core.tolerances import ROUNDING


def needs(problem: Problem) -> FloatArray:
    """For each rank, the smallest memory limit with which the rank can run its ops, shape (P,).

    The limit is necessary: while a microbatch's B runs on a stage, the microbatch holds M_B of that
    stage. On each earlier stage of the same rank its B is still to come, so it holds at least
    :func:`..core.relaxations.least_kept` there (M_B, if nothing can be recomputed or offloaded).
    The limit is sufficient: the microbatches can run one at a time.
    """
    costs, kept = Costs.of(problem), least_kept(problem)
    columns = np.arange(problem.microbatches)
    below, most = np.zeros((2, problem.ranks, problem.microbatches))
    for owner, m_b, least in zip(costs.owner, costs.m_b, kept, strict=True):
        here = owner, columns
        most[here] = np.maximum(most[here], below[here] + m_b)
        below[here] += least
    return np.asarray(most.max(axis=1))


def smallest_limit(problem: Problem) -> tuple[float, int]:
    """The smallest memory limit with which a schedule exists if all ranks have the same limit.

    Returns the limit, and the rank that needs it (:func:`needs`).
    """
    least = needs(problem)
    rank = int(least.argmax())
    return float(least[rank]), rank


def is_feasible(problem: Problem) -> bool:
    """Whether the problem has a schedule that keeps the memory limits."""
    return bool((_lacks(problem) <= 0).all())


def _lacks(problem: Problem) -> FloatArray:
    """How much memory each rank lacks, shape (P,); negative where memory is left.

    That is :func:`needs` minus the rank's limit, to which the tolerance is added.
    """
    return needs(problem) - np.array(problem.memory_limit) * (1 + ROUNDING)


def check_feasible(problem: Problem) -> None:
    """Raise InfeasibleError if no schedule fits in memory.

    The message names the rank that lacks the most memory.
    """
    lacks = _lacks(problem)
    rank = int(lacks.argmax())
    if lacks[rank] <= 0:
        return
    least, given = float(needs(problem)[rank]), problem.memory_limit[rank]
    size, typed = sufficient_size(least), sufficient_size(given)
    raise InfeasibleError(
        f"memory limit {typed} is too small for rank {rank}: one microbatch holds {size} there; "
        f"the smallest feasible limit is {size}{unit_meant(given, least)}",
        smallest=least,
        rank=rank,
        given=given,
    )
