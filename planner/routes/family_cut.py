"""The best cut of a profile's layers into stages for one family of schedules.

1. Start with four cuts: the even one, the balanced one, the one whose fullest stage holds the least
   memory, and the one with the lowest lower bound.
2. Hill climbing: from the cheapest of these cuts, move to the cheapest neighboring cut, as long as
   the cost decreases.
3. List the cuts for which the lower bound of every rank is below the best cost. If they are few,
   simulate all of them, so that the cheapest is proven optimal. Otherwise, the lower bound is the
   one over all cuts.

All cuts have the order of ops of the even cut. This is hence for families whose order does not
depend on the cut, such as 1F1B, GPipe and interleaved 1F1B.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.layered_profile import LayeredProfile
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.units import counted
from pipeloom.solver.core.schedule_cost import iteration_time
from pipeloom.solver.core.stopping import StoppingCriterion, WorkLimit
from pipeloom.solver.core.tolerances import CLOSED
from pipeloom.solver.families import find_family
from pipeloom.solver.partition.candidate import CutCandidate, carry_order
from pipeloom.solver.partition.cut_bounds import CutBounds
from pipeloom.solver.partition.cuts import Cut, Cutter
from pipeloom.solver.placement.search import room

from ..inputs.problem_setup import Terms
from ..results.result import Result

MOST_LISTED = 2000
"""Maximum number of listed cuts; if there are more, none of them is simulated."""
OPS_A_CUT, OPS_A_MICROBATCH = 1e5, 3.0
"""``OPS_A_CUT``: the work of building a cut's problem, converted to simulated ops.
``OPS_A_MICROBATCH``: number of ops that a microbatch has on a stage."""


def best_family_cut(
    name: str,
    layers: LayeredProfile,
    stages: int,
    terms: Terms,
    *,
    stop: StoppingCriterion,
    work: WorkLimit,
    beat: float = math.inf,
) -> Result:
    """Return the family's schedule with the best cut into ``stages`` stages that was found, and a
    lower bound on the family's cost over all cuts.

    ``stop``: the search ends when this returns true. ``work``: counts the simulated ops. ``beat``:
    the cost of a schedule that is already known, or infinity. The search is skipped if the lower
    bound is not below ``beat``, or if there is such a schedule and no time is left. If there is no
    schedule, the result has the reason.
    """
    cutter, family = Cutter(layers, stages, terms.rules), find_family(name)
    even = cutter.even()
    if even is None:
        pieces = counted(cutter.number, "layer")
        return Result(name, why_not=f"no cut of {pieces} into {counted(stages, 'stage')}")
    limit, microbatches = layers.cluster.limit_from(terms.memory_limit), terms.microbatches
    try:
        problem = family.problem(layers.cut(even), microbatches, math.inf, terms.objective)
    except InputError as error:
        return Result.refused(name, error)
    bounds = CutBounds(cutter, problem.placement, microbatches, limit, terms.objective)
    bound = bounds.bound()
    if bound == math.inf:
        return Result(name, why_not="no cut fits in memory")
    if (why_not := _why_not_searched(bound, beat, stop)) is not None:
        return Result(name, lower_bound=bound, why_not=why_not)
    return _FamilyCuts(family.build(problem), bounds, stop, work).plan(name, bound)


def _why_not_searched(bound: float, beat: float, stop: StoppingCriterion) -> str | None:
    if bound >= beat * (1 - CLOSED):
        return "costs no less"
    return "not searched for lack of time" if beat < math.inf and stop() else None


@dataclass
class _FamilyCuts:
    """A search over cuts for a family, all with the order of ops of ``schedule``. Schedules are
    cached."""

    schedule: Schedule
    bounds: CutBounds
    stop: StoppingCriterion
    work: WorkLimit
    _timed: dict[Cut, Schedule | None] = field(default_factory=dict)

    def plan(self, name: str, bound: float) -> Result:
        """Return a result with the best cut's schedule, or with the reason why there is none.

        ``name``: the family's name. ``bound``: the lower bound over all cuts.
        """
        best, complete = self.best()
        found, cost = self.timed(best), self.cost(best)
        if found is not None:
            return Result(name, found, lower_bound=cost if complete else min(cost, bound))
        if complete:
            return Result(name, why_not="no cut fits in memory")
        return Result(name, lower_bound=bound, why_not="no cut that was looked at fits in memory")

    def best(self) -> tuple[Cut, bool]:
        """Return the cheapest cut found, and whether it is proven that no cut is cheaper.

        If it is not proven, the search was stopped, or too many cuts might be cheaper.
        """
        best = self._climb()
        if self.stop():
            return best, False
        listed = self.bounds.below(self.cost(best) * (1 - CLOSED), MOST_LISTED)
        looked_at = self._until_stop(listed or ())
        complete = listed is not None and len(looked_at) == len(listed)
        return min([best, *looked_at], key=self.cost), complete

    def _climb(self) -> Cut:
        cutter = self.bounds.cutter
        fitting = self.bounds.fitting()
        first = [self.bounds.first(), cutter.balanced(fitting), self.bounds.least_full()]
        best = min((c for c in (*first, cutter.even()) if c is not None), key=self.cost)
        while not self.stop():
            near = min(self._until_stop(cutter.neighbours(best)), key=self.cost, default=best)
            if not self.cost(near) < self.cost(best) * (1 - CLOSED):
                break
            best = near
        return best

    def _until_stop(self, cuts: Iterable[Cut]) -> Sequence[Cut]:
        """Simulate ``cuts`` one after the other until the search is stopped. Return the cuts that
        were simulated."""
        found = []
        for cut in takewhile(lambda _: not self.stop(), cuts):
            self.timed(cut)
            found.append(cut)
        return found

    def cost(self, cut: Cut) -> float:
        """Return the iteration time with this cut; infinite if the memory limit is exceeded."""
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
            self.work.spend(OPS_A_CUT + OPS_A_MICROBATCH * problem.stages * problem.microbatches)
            found = carry_order(CutCandidate(problem, cut, 0.0), given.order)
            self._timed[cut] = found and replace(found, report=given.report)
        return self._timed[cut]
