"""The best of the cuts that were looked at are searched, and their orders tried on the others.

An order of ops is one of every cut with the same placement, where memory holds it. So the best
order found is carried to all cuts that may still win, and from the best of them to cuts near by for
as long as that helps; a search begins with the best order of all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule

from ..core.options import Order
from ..core.stopping import Budget, StoppingCriterion
from ..core.tolerances import CLOSED
from .candidate import CutCandidate, carry_order
from .candidate_pool import CandidatePool

CutSolver: TypeAlias = Callable[[Problem, str, float, Order | None], Schedule]
"""The optimizer, given a problem, its name, its share of the time, and an order to begin with."""

# shares of the time in which
LOOKING = 0.12  # cuts are looked at before any is searched
CARRYING = 0.03  # a schedule is tried on other cuts, after each round
CERTIFYING = 0.05  # the cuts that are left are bounded in the end
ROUNDS = ((3, 0.24), (4, 0.2))  # so many of the best cuts are searched, all together
HURRY = 1e-3  # a search is left to build its first schedules
CARRIED_OP = 20  # simulated ops that trying an order counts for each of its ops


@dataclass(frozen=True, slots=True)
class Refinement:
    """Searches the cuts of ``pools``; ``budget``: of the whole, which began before."""

    pools: Sequence[CandidatePool]
    search: CutSolver
    budget: Budget
    should_stop: StoppingCriterion

    def joint(self) -> list[CutCandidate]:
        """Searches a few cuts, then one, and others where that leaves time; returns all that were
        searched, the best first."""
        left = 1.0 - LOOKING - CERTIFYING
        for number, share in ROUNDS:
            best = self._ranked()[:number] if self.searched() else self._first(number)
            left -= self._round(best, share / len(best))
            if not self.should_stop():
                self._carry()
                left -= CARRYING
        done: list[CutCandidate] = []
        while left > HURRY and (best := self._may_win(done)):
            done.append(best[0])
            left -= self._round(best[:1], left)
            if math.isfinite(self.budget.time.left):
                left = self.budget.time.share_left - CERTIFYING
        return self.searched()

    def _may_win(self, done: Sequence[CutCandidate]) -> list[CutCandidate]:
        """The cuts but for those ``done`` that may have the best schedule, the likeliest first."""
        ranked = self._ranked()
        cost = min(candidate.cost for candidate in ranked)
        return [one for one in ranked if one.may_cost_less(cost) and one not in done]

    def _first(self, number: int) -> list[CutCandidate]:
        """The best by quick schedule, its placement's balanced cut in place of the last of them.

        The best of many quick schedules is also the luckiest one.
        """
        ranked = self._ranked()
        balanced = self._pool_of(ranked[0]).balanced
        if balanced is None or balanced in ranked[:number]:
            return ranked[:number]
        return [*ranked[: number - 1], balanced]

    def _pool_of(self, candidate: CutCandidate) -> CandidatePool:
        return next(pool for pool in self.pools if pool.candidates.get(candidate.cut) is candidate)

    def each(self) -> list[CutCandidate]:
        """Searches all cuts, each for an equal share; returns them, the best first."""
        candidates = self._ranked()
        self._round(candidates, 1 / len(candidates))
        return self.searched()

    def searched(self) -> list[CutCandidate]:
        """The cuts with a schedule, the best first."""
        return [candidate for candidate in self._ranked() if candidate.schedule]

    def _ranked(self) -> list[CutCandidate]:
        candidates = (candidate for pool in self.pools for candidate in pool.candidates.values())
        return sorted(candidates, key=lambda candidate: candidate.promise)

    def _round(self, candidates: Sequence[CutCandidate], share: float) -> float:
        """Searches each for a share of the time unless it cannot win; returns the shares' sum."""
        had = 0.0
        for candidate in candidates:
            best = min(each.cost for each in self._ranked())
            left = 0.0 if self.should_stop() else self.budget.time.share_left - CERTIFYING
            if left < HURRY and math.isfinite(best):
                break
            if not candidate.may_cost_less(best):
                continue
            # before anything was found the first schedules come at once, whatever is left
            part = max(HURRY, min(share, left))
            start = self._best_order(candidate)
            candidate.take(self.search(candidate.problem, candidate.name, part, start))
            had += part
        return had

    def _best_order(self, candidate: CutCandidate) -> Order | None:
        """The order of the cheapest schedule with the same placement."""
        placement = candidate.problem.placement
        same = (o for o in self.searched() if o.problem.placement == placement)
        return candidate.order or next((each.order for each in same), None)

    def _carry(self) -> None:
        """Tries the best schedule on the cuts that may still win, then on those near the best."""
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
        """A cut near by, if any, on which the schedule of ``current`` costs less."""
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
        """The cost of ``candidate`` once the schedule of ``other`` was tried on it."""
        if candidate is not other and candidate.may_cost_less(math.inf) and other.order is not None:
            carrying.work.spend(sum(map(len, other.order)) * CARRIED_OP)
            schedule = carry_order(candidate, other.order)
            if schedule is not None:
                candidate.take(schedule)
        return candidate.cost
