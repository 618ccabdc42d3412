"""Joint search for cut, placement and schedule.

Many cuts are examined (bounded, with a schedule built without a search), few are searched, and one
of these is searched to the end.

1. Every placement has a lower bound for all its cuts (:mod:`.cut_bounds`) and first cuts: the one
   with the lowest bound, those that balance time and memory, and the even one.
2. From there, cuts are examined in two orders alternately: the next one by bound, and the neighbors
   of the best so far. Each cut gets its own bound and, if that allows it to win, a schedule built
   without a search.
3. The best cut and the balanced one are searched for a short time, then a few, then one for the
   rest of the time. In between, orders are tried on other cuts (:class:`Refinement`). A cut is left
   out if its bound proves that it is no better.

An order of ops is valid for every cut with the same placement, if it fits in memory. So the best
order found is tried on all cuts that may still win, and then on neighbors of the best of these cuts
as long as that helps. A search starts from the best order of its placement.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pipeloom.ir.model.layered_profile import LayeredProfile
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.units import counted

from ..core.options import Order
from ..core.stopping import NEVER, Budget, FirstOf, StoppingCriterion
from ..core.tolerances import CLOSED
from ..placement.search import TriedPlacement
from .candidate import CutCandidate, carry_order
from .candidate_pool import CandidatePool, Way
from .cut_bounds import CutBounds
from .cuts import Cutter, Rules
from .min_memory import MinMemory

CutSolver: TypeAlias = Callable[[Problem, str, float, Order | None], Schedule]
"""The optimizer of one problem. It is called with the problem, a name for it, a share of the time,
and an order to start from or None."""

# shares of the time
LOOKING = 0.12  # for examining cuts before any is searched
CARRYING = 0.03  # for trying a schedule on other cuts, after each round
CERTIFYING = 0.05  # for bounding the remaining cuts at the end
ROUNDS = ((3, 0.24), (4, 0.2))  # by round: number of the best cuts that are searched, total share
HURRY = 1e-3  # for building the first schedules of a search
CARRIED_OP = 20  # work to try an order on another cut, in simulated ops per op


@dataclass(frozen=True, slots=True)
class Refinement:
    """The second part of :func:`best_partition`: it searches for schedules of promising cuts.

    ``pools``: for each placement, the cuts that have been examined. ``search``: the optimizer of
    one cut. ``budget``: the budget of the whole of :func:`best_partition`, part of which is used
    already. A share of time, here and in the methods, is a fraction of the time in this budget.
    """

    pools: Sequence[CandidatePool]
    search: CutSolver
    budget: Budget
    should_stop: StoppingCriterion

    def joint(self) -> list[CutCandidate]:
        """Search a few cuts, then one for long, then further cuts if time is left.

        Returns the cuts that have a schedule, the best first.
        """
        left = 1.0 - LOOKING - CERTIFYING
        for number, share in ROUNDS:
            best = self._ranked()[:number] if self.searched() else self._first(number)
            left -= self._round(best, share / len(best))
            if not self.should_stop():
                self._carry()
                left -= CARRYING
        done: list[CutCandidate] = []
        while left > HURRY and not self.should_stop():
            if best := self._may_win(done):
                done.append(best[0])
                left -= self._round(best[:1], left)
            elif self._look_on(share := min(LOOKING, left)):
                left -= share
            else:
                break
            if math.isfinite(self.budget.time.left):
                left = self.budget.time.share_left - CERTIFYING
        return self.searched()

    def _look_on(self, share: float) -> bool:
        """Examine further cuts for this ``share`` of time; return whether there were any."""
        seen = sum(pool.seen for pool in self.pools)
        look(self.pools, self.budget, self.should_stop, share)
        return sum(pool.seen for pool in self.pools) > seen

    def _may_win(self, done: Sequence[CutCandidate]) -> list[CutCandidate]:
        """Return the cuts that may still have the best schedule, the most promising first.

        Cuts in ``done`` are left out.
        """
        ranked = self._ranked()
        cost = min(candidate.cost for candidate in ranked)
        return [one for one in ranked if one.may_cost_less(cost) and one not in done]

    def _first(self, number: int) -> list[CutCandidate]:
        """Return the ``number`` cuts whose schedules built without a search are the best.

        If the balanced cut of the best placement is not among them, it takes the place of the last
        one, because the best of many such schedules may be the best by chance.
        """
        ranked = self._ranked()
        balanced = self._pool_of(ranked[0]).balanced
        if balanced is None or balanced in ranked[:number]:
            return ranked[:number]
        return [*ranked[: number - 1], balanced]

    def _pool_of(self, candidate: CutCandidate) -> CandidatePool:
        return next(pool for pool in self.pools if pool.candidates.get(candidate.cut) is candidate)

    def each(self) -> list[CutCandidate]:
        """Search all cuts, each for an equal share of the time.

        Returns the cuts that have a schedule, the best first.
        """
        candidates = self._ranked()
        self._round(candidates, 1 / len(candidates))
        return self.searched()

    def searched(self) -> list[CutCandidate]:
        """Return the cuts that have a schedule, the best first."""
        return [candidate for candidate in self._ranked() if candidate.schedule]

    def _ranked(self) -> list[CutCandidate]:
        candidates = (candidate for pool in self.pools for candidate in pool.candidates.values())
        return sorted(candidates, key=lambda candidate: candidate.promise)

    def _round(self, candidates: Sequence[CutCandidate], share: float) -> float:
        """Search those of ``candidates`` that may still win, each for this ``share`` of the time.

        Returns the sum of the shares that were used.
        """
        had = 0.0
        for candidate in candidates:
            best = min(each.cost for each in self._ranked())
            left = 0.0 if self.should_stop() else self.budget.time.share_left - CERTIFYING
            if left < HURRY and math.isfinite(best):
                break
            if not candidate.may_cost_less(best):
                continue
            # the very first search always gets time for its first schedules
            part = max(HURRY, min(share, left))
            start = self._best_order(candidate)
            candidate.take(self.search(candidate.problem, candidate.name, part, start))
            had += part
        return had

    def _best_order(self, candidate: CutCandidate) -> Order | None:
        """Return the best order known for ``candidate`` or, if there is none, for its placement.

        Returns None if no cut with the same placement has a schedule either.
        """
        placement = candidate.problem.placement
        same = (o for o in self.searched() if o.problem.placement == placement)
        return candidate.order or next((each.order for each in same), None)

    def _carry(self) -> None:
        """Try the order of the best schedule on the other cuts with the same placement.

        Then try the order of the cheapest of these cuts on its neighbors, and repeat that with a
        neighbor that costs less, until none does.
        """
        carrying = self.budget.share(CARRYING)
        searched = self.searched()
        if not searched:
            return
        best = searched[0]
        pool = self._pool_of(best)
        for candidate in list(pool.candidates.values()):
            if carrying():
                return
            self._try(candidate, best, carrying)
        current = min(pool.candidates.values(), key=lambda candidate: candidate.cost)
        while (nearer := self._nearer(pool, current, carrying)) is not None:
            current = nearer

    def _nearer(
        self, pool: CandidatePool, current: CutCandidate, carrying: Budget
    ) -> CutCandidate | None:
        """Return a neighbor of ``current`` that costs less with the order of ``current``.

        Returns None if there is none, or if the budget ``carrying`` is used up.
        """
        below = current.cost * (1 - CLOSED)
        for cut in pool.cut_bounds.cutter.neighbours(current.cut):
            if carrying() or self.should_stop():
                return None
            if pool.cut_bounds.of(cut)[0] >= below:
                continue
            candidate = pool.candidate(cut)
            if candidate is not None and self._try(candidate, current, carrying) < below:
                return candidate
        return None

    def _try(self, candidate: CutCandidate, other: CutCandidate, carrying: Budget) -> float:
        """Try the order of ``other`` on ``candidate``, and return the lowest cost known for that.

        The work is counted in ``carrying``.
        """
        if candidate is not other and candidate.may_cost_less(math.inf) and other.order is not None:
            carrying.work.spend(sum(map(len, other.order)) * CARRIED_OP)
            schedule = carry_order(candidate, other.order)
            if schedule is not None:
                candidate.take(schedule)
        return candidate.cost


@dataclass(frozen=True, slots=True)
class Partitioned:
    """The result of :func:`best_partition`.

    ``best``: the best cut, with its schedule; None if no schedule was found. ``searched``: the cuts
    that have a schedule, the best first. ``bound``: a lower bound on the cost of all schedules of
    all cuts with any of the placements. ``seen``: the number of cuts examined. ``tried``: an entry
    for each placement, the best first. ``smallest``: the smallest memory that suffices for a cut
    with one of the placements for which no cut fits; None if there is no such placement.
    """

    best: CutCandidate | None
    searched: tuple[CutCandidate, ...]
    bound: float
    seen: int
    tried: tuple[TriedPlacement, ...]
    smallest: MinMemory | None = None

    @property
    def why_not(self) -> dict[str, str]:
        return {each.name: each.why_not for each in self.tried if each.why_not is not None}


def best_partition(
    profile: LayeredProfile,
    microbatches: int,
    placements: Sequence[Placement],
    search: CutSolver,
    *,
    way: Way = Way.JOINT,
    rules: Rules | None = None,
    memory_limit: float | None = None,
    objective: Objective = Objective.PERIOD,
    budget: Budget | None = None,
    seed: int = 0,
    should_stop: StoppingCriterion = NEVER,
) -> Partitioned:
    """Return the best cut, placement and schedule that are found within ``budget``.

    ``placements``: the placements to try. ``search``: the optimizer of one cut, which is called
    with shares of the budget. ``way``: whether the cut is chosen together with the schedule or
    before it. ``rules``: the minimum and maximum number of layers of a stage. Activations must fit
    in ``memory_limit``, and in what the weights, gradients and optimizer state of a rank leave of
    its ``device_memory``.
    """
    budget = budget or Budget()
    limit = profile.cluster.limit_from(memory_limit)
    pools, closed, tried = list[CandidatePool](), list[CandidatePool](), list[TriedPlacement]()
    opening = FirstOf(budget.share(LOOKING), should_stop)
    for placement in placements:
        cutter = Cutter(profile, len(placement.owners), rules or Rules())
        pool = CandidatePool(CutBounds(cutter, placement, microbatches, limit, objective), seed)
        if (reason := _no_cut(cutter)) is not None:
            tried.append(TriedPlacement(placement.name, None, why_not=reason))
        else:
            (pools if pool.open(way, opening) else closed).append(pool)
    if way is Way.JOINT:
        look(pools, budget, should_stop)
    nothing = [*closed, *(pool for pool in pools if not pool.candidates)]
    opened, pools = pools, [pool for pool in pools if pool.candidates]
    searched: list[CutCandidate] = []
    if pools:
        refinement = Refinement(pools, search, budget, should_stop)
        searched = refinement.joint() if way is Way.JOINT else refinement.each()
    best = min(searched, key=lambda candidate: candidate.cost, default=None)
    cost = math.inf if best is None else best.cost
    for pool in pools:
        bound = pool.certified(cost, budget.share(CERTIFYING / len(pools)))
        tried.append(
            TriedPlacement(pool.cut_bounds.placement.name, max(bound, pool.bound), pool.found)
        )
    for pool in nothing:
        known = None if pool.ruled_out else pool.bound
        tried.append(
            TriedPlacement(pool.cut_bounds.placement.name, known, why_not=str(pool.lacking))
        )
    lacking = [pool.lacking for pool in nothing if pool.lacking is not None]
    bound = min((each.bound for each in tried if each.bound is not None), default=math.inf)
    return Partitioned(
        best,
        tuple(searched),
        bound,
        sum(pool.seen for pool in (*opened, *closed)),
        tuple(sorted(tried, key=lambda each: (each.cost, each.bound or math.inf))),
        smallest=min(lacking, key=lambda each: (each.device, each.limit), default=None),
    )


def look(
    pools: Sequence[CandidatePool],
    budget: Budget,
    should_stop: StoppingCriterion,
    share: float = LOOKING,
) -> None:
    """Examine cuts of each placement in ``pools`` in turn, for this ``share`` of the budget.

    As long as no cut fits in memory, nearly all of the budget may be used.
    """
    open_ = list(pools)
    looking, longest = budget.share(share), budget.share(1.0 - LOOKING - CERTIFYING)
    too_long = FirstOf(longest, should_stop)
    while open_ and not should_stop():
        for pool in list(open_):
            bests = [each.best for each in pools]
            cost = min((one.quick_schedule.cost for one in bests if one), default=math.inf)
            cuts = [pool.by_bound(), pool.near_the_best()]
            if pool.bound >= cost * (1 - CLOSED) or cuts == [None, None]:
                open_.remove(pool)
                continue
            for cut in cuts:
                left = looking if any(each.candidates for each in pools) else longest
                if left():
                    return
                if cut is not None:
                    work = pool.look(cut, cost, too_long)
                    looking.work.spend(work)
                    longest.work.spend(work)


def _no_cut(cutter: Cutter) -> str | None:
    """Return the reason why no cut is allowed, or None if some cut is."""
    if cutter.even() is not None:
        return None
    pieces = cutter.number - sum(cutter.profile.tied)
    if pieces < cutter.stages:
        return (
            f"{counted(pieces, 'layer')} that may be cut apart, fewer than its "
            f"{counted(cutter.stages, 'stage')}"
        )
    most = "" if cutter.rules.most is None else f" and at most {cutter.rules.most}"
    return (
        f"no cut of {counted(cutter.number, 'layer')} into {counted(cutter.stages, 'stage')} has "
        f"at least {cutter.rules.least}{most} in each"
    )
