"""Which memory limits admit a schedule at all."""

from __future__ import annotations

import numpy as np

from pipeloom.ir.amounts import exact_amount
from pipeloom.ir.costs import Costs
from pipeloom.ir.errors import InfeasibleError
from pipeloom.ir.ops import FloatArray
from pipeloom.ir.problem import Problem

from .chain import ROUNDING


def needs(problem: Problem) -> FloatArray:
    """The least limit that each rank can run with, shape (P,).

    Of one microbatch, a rank holds M_B of every stage it runs at once, as the B's go through the
    stages in the reverse order of the F's. That much is also enough: microbatches one at a time.
    """
    costs = Costs.of(problem)
    held = np.zeros((problem.ranks, problem.microbatches))
    columns = np.broadcast_to(np.arange(problem.microbatches), costs.owner.shape)
    np.add.at(held, (costs.owner, columns), costs.m_b[:, None])
    return np.asarray(held.max(axis=1))


def smallest_limit(problem: Problem) -> tuple[float, int]:
    """The smallest limit, the same on all ranks, that admits a schedule, and the rank it is for."""
    least = needs(problem)
    rank = int(least.argmax())
    return float(least[rank]), rank


def check_feasible(problem: Problem) -> None:
    """Raises InfeasibleError, naming the rank that lacks most, where no schedule keeps the limit."""
    least, given = needs(problem), np.array(problem.memory_limit)
    lacks = least - given * (1 + ROUNDING)
    rank = int(lacks.argmax())
    if lacks[rank] <= 0:
        return
    raise InfeasibleError(
        f"memory limit {exact_amount(given[rank])} is too small for rank {rank}: one microbatch "
        f"holds {exact_amount(least[rank])} there; the smallest feasible limit is "
        f"{exact_amount(least[rank])}",
        smallest=float(least[rank]),
        rank=rank,
    )
