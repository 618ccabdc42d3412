"""A cut of the layers with its bound and its schedules.

The *quick schedule* of a cut is the best of some that are built without a search.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import islice, pairwise

import numpy as np

from pipeloom.ir.cost.simulator import timed
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.schedule import OPTIMIZED, Report, Schedule

from ..construct.linear import Constructor, settings
from ..construct.list_parameters import ListKind, Stages, list_parameters
from ..construct.list_scheduler import ListRun, list_schedule
from ..core.linear_instance import LinearInstance
from ..core.methods import Method
from ..core.options import Order
from ..core.schedule_cost import iteration_time, objective_cost, status_under, within_memory
from ..core.stopping import NEVER, StoppingCriterion
from ..core.streams import number_of_ops
from ..core.tolerances import CLOSED
from ..search.constructor_search import building
from ..search.list_search import LIST_OP
from .cuts import Cut

DRAWN = 40  # number of random settings of the list scheduler's parameters to try
BUILT = 400  # number of orders to build in rounds, with one stage per rank


@dataclass(frozen=True, slots=True, eq=False)
class QuickSchedule:
    """An order that was built without a search, and its cost.

    ``rows``: the order, one array of packed ops per rank. If no order was found, it is None, and
    ``cost`` is infinite.
    """

    cost: float = math.inf
    rows: Order | None = None


def quick_schedule(
    problem: Problem, bound: float, seed: int, spent: StoppingCriterion = NEVER
) -> QuickSchedule:
    """Return the best of several schedules that are built without a search.

    ``bound``: a lower bound on the cost; once a schedule has this cost, no more are built.
    ``seed``: the seed for random parameters. ``spent``: once it returns True, no more schedules are
    built.
    """
    linear = LinearInstance.of(problem)
    if linear is None:
        return _listed(problem, seed, spent)
    found = _constructed(problem, linear, bound, spent)
    if found.cost <= bound * (1 + CLOSED) or spent():
        return found
    return min(found, _listed(problem, seed, spent), key=lambda schedule: schedule.cost)


def effort(problem: Problem) -> float:
    """Return the effort that it takes to bound ``problem`` and build its quick schedule.

    The unit is the effort to simulate one op.
    """
    size = number_of_ops(problem)
    constructed = len(set(problem.placement.owners)) == problem.stages
    listed = DRAWN * LIST_OP * size * max(1, problem.stages // problem.ranks)
    return listed + BUILT * building(size) * constructed


def _constructed(
    problem: Problem, linear: LinearInstance, bound: float, spent: StoppingCriterion
) -> QuickSchedule:
    constructor, best = Constructor(problem, linear), QuickSchedule()
    family = list(settings(problem, linear, bound))
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
    kind, run = ListKind.of(stages, remat=False, unlike=False), ListRun.of(stages)
    drawn = islice(list_parameters(stages, kind, np.random.default_rng(seed)), DRAWN)
    makespan = problem.objective is Objective.MAKESPAN
    for parameters in drawn:
        cost = list_schedule(stages, parameters, None, None, makespan, run)
        if cost < best.cost:
            best = QuickSchedule(cost, run.rows(stages))
        if spent():
            break
    return best


NONE = QuickSchedule()


@dataclass(slots=True, eq=False)
class CutCandidate:
    """A cut with its placement, a lower bound and the best schedules known.

    ``problem``: the problem with this cut. ``bound``: a lower bound on the cost of all schedules of
    the cut, and ``bound_name`` its name. ``quick_schedule``: the best schedule built without a
    search. ``schedule``: the best schedule that a search found, or that runs the order found for
    another cut; None if there is none.
    """

    problem: Problem
    cut: Cut
    bound: float
    bound_name: str | None = None
    quick_schedule: QuickSchedule = NONE
    schedule: Schedule | None = None

    @property
    def order(self) -> Order | None:
        return self.quick_schedule.rows if self.schedule is None else self.schedule.order

    @property
    def promise(self) -> tuple[float, float, float]:
        """The key by which cuts are sorted, the most promising first."""
        return min(self.cost, self.quick_schedule.cost), self.bound, self.quick_schedule.cost

    @property
    def name(self) -> str:
        """The placement and the number of layers of each stage, such as ``linear 3+4+3``."""
        number = sum(len(stage.layers) for stage in self.problem.profile.stages)
        sizes = "+".join(str(b - a) for a, b in pairwise((*self.cut, number)))
        return f"{self.problem.placement.name} {sizes}"

    def may_cost_less(self, cost: float) -> bool:
        """Return whether a search of this cut may improve on ``cost``.

        That is, whether a schedule may exist that costs less than ``cost``, and also less than the
        best schedule of this cut.
        """
        return self.bound < min(cost, self.cost) * (1 - CLOSED)

    @property
    def cost(self) -> float:
        return math.inf if self.schedule is None else iteration_time(self.schedule)

    def take(self, schedule: Schedule) -> None:
        """Keep ``schedule`` if it is the best so far, and its bound if that is the highest."""
        known = self.schedule or schedule
        best = schedule if iteration_time(schedule) <= self.cost else known
        proven = max((schedule, known), key=_proven)
        self.bound = max(self.bound, _proven(proven))
        self.schedule = _with_bound(best, proven)


def _proven(schedule: Schedule) -> float:
    return (schedule.report.lower_bound if schedule.report else None) or 0.0


def _with_bound(schedule: Schedule, proven: Schedule) -> Schedule:
    """Return ``schedule`` with the lower bound taken from the report of ``proven``.

    Both are schedules of the same problem.
    """
    if schedule is proven or schedule.report is None or proven.report is None:
        return schedule
    cost = objective_cost(schedule)
    bound = min(_proven(proven), cost)
    status = status_under(bound, cost)
    known = replace(schedule.report, lower_bound=bound, bound=proven.report.bound, status=status)
    return replace(schedule, report=known)


def carry_order(candidate: CutCandidate, order: Order) -> Schedule | None:
    """Return the timed schedule of the cut ``candidate`` that runs the ops in the order ``order``.

    ``order``: the order of a schedule of another cut with the same placement. Returns None if the
    result does not fit in memory.
    """
    problem = candidate.problem
    report = Report(
        problem.objective,
        OPTIMIZED,
        lower_bound=candidate.bound,
        bound=candidate.bound_name,
        method=Method.CARRY,
    )
    schedule = timed(Schedule(problem, order, report=report))
    assert schedule.timing is not None
    fits = within_memory(problem, schedule.timing)
    return _with_bound(schedule, schedule) if fits else None
