"""What a cut is worth, at a glance: its bound, and the best of a few schedules that are built at once."""

from __future__ import annotations

from itertools import islice

import numpy as np

from pipeloom.ir.problem import Objective, Problem

from ..bounds import lower_bounds
from ..chain import Chain
from ..construct import Constructor, settings
from ..dispatch import Stages, dispatch, dispatch_settings
from ..local_search import CHOSEN_OP, building

DRAWN = 40
"""Settings of the list scheduler that are tried."""
BUILT = 400
"""Orders that the constructors of one stage a rank build."""


def bound_of(problem: Problem) -> float:
    """No schedule of the problem costs less. Raises InfeasibleError where there is none."""
    return max(bound.value for bound in lower_bounds(problem))


def sketched(problem: Problem, bound: float, seed: int) -> float:
    """What a schedule built without any search costs; infinite where none was found."""
    chain = Chain.of(problem)
    return _constructed(problem, chain, bound) if chain else _dispatched(problem, seed)


def effort(problem: Problem) -> float:
    """What bound and sketch count, in simulated ops."""
    size = 3 * problem.stages * problem.microbatches
    if len(set(problem.placement.owners)) == problem.stages:
        return BUILT * building(size)
    return DRAWN * CHOSEN_OP * size * max(1, problem.stages // problem.ranks)


def _constructed(problem: Problem, chain: Chain, bound: float) -> float:
    constructor, best = Constructor(problem, chain), np.inf
    family = list(settings(chain, bound, chain.lags(problem.objective)))
    every = max(1, len(family) // BUILT)
    for setting in family[::every]:
        rows = constructor.build(setting)
        if rows is not None:
            best = min(best, constructor.cost(rows))
            if best <= bound * (1 + 1e-6):
                break
    return best


def _dispatched(problem: Problem, seed: int) -> float:
    stages = Stages.of(problem)
    size = 3 * problem.stages * problem.microbatches
    order, spans = np.empty(size, dtype=np.int64), np.empty(problem.ranks)
    ends = np.empty((2, problem.stages, problem.microbatches))
    drawn = islice(
        dispatch_settings(stages, problem.microbatches, np.random.default_rng(seed)), DRAWN
    )
    makespan = problem.objective is Objective.MAKESPAN
    return min(dispatch(stages, each, makespan, order, ends, spans) for each in drawn)
