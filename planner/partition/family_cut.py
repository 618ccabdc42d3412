"""The best cut of a profile's layers for one family.

1. The even cut, the balanced one, the one that fills memory least, and the one of the least bound.
2. From the cheapest of them to the cheapest neighbour, for as long as that costs less.
3. The cuts each of whose ranks alone may still cost less are listed: where they are few, all are
   timed, and the cheapest is proven to be the best.

The order of ops is taken from the even cut: it is for families whose order no cut changes, such as
1F1B, GPipe and interleaved 1F1B.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.layered_profile import LayeredProfile
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.units import counted
from pipeloom.solver.core.schedule_cost import iteration_time
from pipeloom.solver.core.stopping import StoppingCriterion
from pipeloom.solver.core.tolerances import CLOSED
from pipeloom.solver.families import find_family
from pipeloom.solver.partition.candidate import CutCandidate, carry_order
from pipeloom.solver.partition.cut_bounds import CutBounds
from pipeloom.solver.partition.cuts import Cut, Cutter, Rules
from pipeloom.solver.placement.search import room

MOST_LISTED = 2000
"""Cuts that are timed one by one in the end."""


@dataclass(frozen=True, slots=True)
class FamilyPlan:
    """The best schedule found of ``family``, None where there is none, as ``why_not`` says.

    No cut of the layers gives the family a cost below ``bound``.
    """

    family: str
    schedule: Schedule | None = None
    bound: float | None = None
    why_not: str | None = None

    @property
    def cost(self) -> float:
        return math.inf if self.schedule is None else iteration_time(self.schedule)


def best_family_cut(
    name: str,
    layers: LayeredProfile,
    stages: int,
    microbatches: int,
    *,
    memory_limit: float | None,
    objective: Objective,
    rules: Rules,
    stop: StoppingCriterion,
) -> FamilyPlan:
    """The best of all cuts into ``stages`` stages, as far as they are looked at until ``stop``."""
    cutter, family = Cutter(layers, stages, rules), find_family(name)
    even = cutter.even()
    if even is None:
        pieces = counted(cutter.number, "layer")
        return FamilyPlan(name, why_not=f"no cut of {pieces} into {counted(stages, 'stage')}")
    limit = layers.cluster.limit_from(memory_limit)
    try:
        problem = family.problem(layers.cut(even), microbatches, math.inf, objective)
        schedule = family.build(problem)
    except InputError as error:
        return FamilyPlan(name, why_not=str(error).removeprefix(f"{name}: "))
    bounds = CutBounds(cutter, problem.placement, microbatches, limit, objective)
    cuts = _FamilyCuts(schedule, bounds)
    best = cuts.climb(stop)
    left = None if stop() else bounds.below(cuts.cost(best) * (1 - CLOSED), MOST_LISTED)
    best = min([best, *(left or ())], key=cuts.cost)
    found, cost = cuts.timed(best), cuts.cost(best)
    if found is None:
        return FamilyPlan(name, why_not="no cut that was looked at fits in memory")
    return FamilyPlan(name, found, cost if left is not None else min(cost, bounds.bound()))


@dataclass
class _FamilyCuts:
    """The family's order on other cuts; those that were timed are kept."""

    schedule: Schedule
    bounds: CutBounds
    _timed: dict[Cut, Schedule | None] = field(default_factory=dict)

    def climb(self, stop: StoppingCriterion) -> Cut:
        cutter = self.bounds.cutter
        fitting = self.bounds.fitting()
        first = [self.bounds.first(), cutter.balanced(fitting), self.bounds.least_full()]
        best = min((c for c in (*first, cutter.even()) if c is not None), key=self.cost)
        while not stop():
            near = min(cutter.neighbours(best), key=self.cost, default=best)
            if not self.cost(near) < self.cost(best) * (1 - CLOSED):
                break
            best = near
        return best

    def cost(self, cut: Cut) -> float:
        """Infinite where memory is too small."""
        schedule = self.timed(cut)
        return math.inf if schedule is None else iteration_time(schedule)

    def timed(self, cut: Cut) -> Schedule | None:
        if cut not in self._timed:
            bounds, given = self.bounds, self.schedule
            profile = bounds.cutter.profile.cut(cut)
            limit = room(profile, bounds.placement, bounds.limit)
            problem = Problem(
                profile, bounds.microbatches, bounds.placement, limit, bounds.objective
            )
            found = carry_order(CutCandidate(problem, cut, 0.0), given.order)
            self._timed[cut] = found and replace(found, report=given.report)
        return self._timed[cut]
