"""The quick schedule of a cut: the best of a few that are built without any search."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice

import numpy as np

from pipeloom.ir.model.problem import Objective, Problem

from ..construct.linear import Constructor, settings
from ..construct.list_parameters import Stages, list_parameters
from ..construct.list_scheduler import list_schedule
from ..core.linear_instance import LinearInstance
from ..core.options import Order
from ..core.stopping import NEVER, StoppingCriterion
from ..core.tolerances import CLOSED
from ..search.constructor_search import building
from ..search.list_search import LIST_OP

DRAWN = 40  # parameters of the list scheduler that are tried
BUILT = 400  # orders that the constructors of one stage a rank build


@dataclass(frozen=True, slots=True, eq=False)
class QuickSchedule:
    """The cost of an order, infinite where none was found."""

    cost: float = math.inf
    rows: Order | None = None


def quick_schedule(
    problem: Problem, bound: float, seed: int, spent: StoppingCriterion = NEVER
) -> QuickSchedule:
    """The best of some schedules; of fewer once ``spent`` turns true."""
    linear = LinearInstance.of(problem)
    if linear:
        return _constructed(problem, linear, bound, spent)
    return _listed(problem, seed, spent)


def effort(problem: Problem) -> float:
    """The simulated ops that a bound and a quick schedule count."""
    size = 3 * problem.stages * problem.microbatches
    if len(set(problem.placement.owners)) == problem.stages:
        return BUILT * building(size)
    return DRAWN * LIST_OP * size * max(1, problem.stages // problem.ranks)


def _constructed(
    problem: Problem, linear: LinearInstance, bound: float, spent: StoppingCriterion
) -> QuickSchedule:
    constructor, best = Constructor(problem, linear), QuickSchedule()
    family = list(settings(linear, bound, linear.lags(problem.objective)))
    every = max(1, len(family) // BUILT)
    for parameters in family[::every]:
        rows = constructor.build(parameters)
        cost = np.inf if rows is None else constructor.cost(rows)
        if cost < best.cost:
            best = QuickSchedule(cost, rows)
        if best.cost <= bound * (1 + CLOSED) or spent():
            break
    return best


def _listed(problem: Problem, seed: int, spent: StoppingCriterion) -> QuickSchedule:
    stages, best = Stages.of(problem), QuickSchedule()
    size = 3 * problem.stages * problem.microbatches
    order, spans = np.empty(size, dtype=np.int64), np.empty(problem.ranks)
    ends = np.empty((2, problem.stages, problem.microbatches))
    drawn = islice(list_parameters(stages, np.random.default_rng(seed)), DRAWN)
    makespan = problem.objective is Objective.MAKESPAN
    for parameters in drawn:
        cost = list_schedule(stages, parameters, makespan, order, ends, spans)
        if cost < best.cost:
            rows = np.split(order.copy(), 3 * problem.microbatches * stages.offsets[1:-1])
            best = QuickSchedule(cost, tuple(rows))
        if spent():
            break
    return best
