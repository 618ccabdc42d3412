"""The cuts of one placement that have been examined, and those to examine next."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum

from pipeloom.ir.errors import InfeasibleError
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule

from ..bounds import lower_bound as bound_of
from ..core.stopping import NEVER, Budget, StoppingCriterion
from ..core.tolerances import CLOSED, ROUNDING
from ..placement.search import room
from .candidate import CutCandidate, effort, quick_schedule
from .cut_bounds import CutBounds
from .cuts import Cut
from .min_memory import MinMemory, smallest

MOST_LEFT = 400  # maximum number of cuts that are bounded one by one at the end
LOOKED_AT = 100  # work of a cut's bounds, in simulated ops per stages squared times microbatches


class Way(Enum):
    """When the cut is chosen.

    JOINT: together with the schedule. BALANCED, EVEN: before the schedule; it is the balanced or
    the even cut.
    """

    JOINT = "joint"
    BALANCED = "balanced"
    EVEN = "even"


@dataclass(eq=False)
class CandidatePool:
    """The cuts of one placement that have been examined, and those to examine next.

    ``candidates``: the examined cuts that fit in memory. ``bound``: a lower bound on the cost of
    all schedules of all cuts. ``lacking``: the memory that would suffice, or None if one of the
    first cuts fits.
    """

    cut_bounds: CutBounds
    seed: int
    candidates: dict[Cut, CutCandidate] = field(default_factory=dict)
    _refused: set[Cut] = field(default_factory=set)
    bound: float = 0.0
    lacking: MinMemory | None = None
    _balanced: Cut | None = None
    _queue: list[tuple[tuple[float, ...], Cut]] = field(default_factory=list)
    _queued: set[Cut] = field(default_factory=set)
    _near: Iterator[Cut] = field(default_factory=lambda: iter(()))
    _near_to: CutCandidate | None = None

    def open(self, way: Way, spent: StoppingCriterion = NEVER) -> bool:
        """Examine the first cuts; return whether the placement is worth further work.

        It is if a cut fits in memory or, with ``way`` JOINT, if it is not proven that none fits.
        ``way``: when the cut is chosen. If none of the first cuts fits, :attr:`lacking` is set.
        ``spent``: once it returns True and a cut fits, no more cuts are examined.
        """
        cutter = self.cut_bounds.cutter
        even, balanced = cutter.even(), cutter.balanced(self.cut_bounds.fitting())
        self.bound, self._balanced = self.cut_bounds.bound(), balanced
        first = [balanced] if way is Way.BALANCED else [even]
        if way is Way.JOINT:
            first = [self.cut_bounds.first(), balanced, self.cut_bounds.least_full(), even]
        for cut in first:
            if cut is not None:
                self.look(cut, math.inf, spent)
            if self.candidates and spent():
                break
        if self.candidates:
            return True
        only = None if way is Way.JOINT else first[0]
        self.lacking = smallest(cutter, self.cut_bounds.placement, only)
        if way is Way.JOINT:
            self.look(self.lacking.cut, math.inf, spent)
        return bool(self.candidates) or (way is Way.JOINT and not self.ruled_out)

    @property
    def ruled_out(self) -> bool:
        """Whether it is proven that no cut fits in memory; False if that is not known."""
        if math.isinf(self.bound):
            return True
        lacking, most = self.lacking, max(self.cut_bounds.limit) * (1 + ROUNDING)
        return lacking is not None and lacking.proven and (lacking.device or lacking.limit > most)

    @property
    def balanced(self) -> CutCandidate | None:
        return None if self._balanced is None else self.candidates.get(self._balanced)

    @property
    def best(self) -> CutCandidate | None:
        return min(
            self.candidates.values(),
            key=lambda candidate: candidate.quick_schedule.cost,
            default=None,
        )

    @property
    def found(self) -> Schedule | None:
        best = min(self.candidates.values(), key=lambda candidate: candidate.cost, default=None)
        return None if best is None else best.schedule

    def look(self, cut: Cut, cost: float, spent: StoppingCriterion = NEVER) -> float:
        """Examine ``cut``: compute its bound and, if that is below ``cost``, a quick schedule.

        Neighboring cuts are queued for :meth:`by_bound`. ``spent``: once it returns True, no more
        schedules are built. Returns the effort that this took; its unit is the effort to simulate
        one op.
        """
        self._queued.add(cut)
        problem = self._problem(cut)
        for near in self.cut_bounds.cutter.neighbours(cut):
            if near not in self._queued:
                self._queued.add(near)
                heapq.heappush(self._queue, (self.cut_bounds.of(near), near))
        work = float(problem.stages**2 * problem.microbatches * LOOKED_AT)
        candidate = self.candidate(cut)
        if candidate is None:
            return work
        if candidate.bound < cost * (1 - CLOSED):
            candidate.quick_schedule = quick_schedule(problem, candidate.bound, self.seed, spent)
            work += effort(problem)
        return work

    def candidate(self, cut: Cut) -> CutCandidate | None:
        """Return the candidate for ``cut``, with its bound; None if it does not fit in memory."""
        if cut in self.candidates or cut in self._refused:
            return self.candidates.get(cut)
        problem = self._problem(cut)
        try:
            bound = bound_of(problem)
        except InfeasibleError:
            self._refused.add(cut)
            return None
        self.candidates[cut] = CutCandidate(problem, cut, bound.value, bound.name)
        return self.candidates[cut]

    @property
    def seen(self) -> int:
        return len(self.candidates) + len(self._refused)

    def certified(self, cost: float, looking: Budget) -> float:
        """Return a lower bound, at most ``cost``, on the cost of all schedules of all cuts.

        Only cuts on which each single rank has a bound below ``cost`` can have a cheaper schedule;
        these are bounded one by one. If there are too many of them, or the budget ``looking`` is
        used up, the result is :attr:`bound` or, if that is lower, ``cost``.
        """
        left = None if self.bound >= cost else self.cut_bounds.below(cost * (1 - CLOSED), MOST_LEFT)
        least = cost
        for cut in left or ():
            if looking():
                return min(self.bound, cost)
            problem = self._problem(cut)
            looking.work.spend(problem.stages**2 * problem.microbatches * LOOKED_AT)
            with suppress(InfeasibleError):
                known = self.candidates.get(cut)
                least = min(least, bound_of(problem).value if known is None else known.bound)
        return min(self.bound, cost) if left is None else max(self.bound, least)

    def by_bound(self) -> Cut | None:
        """Remove the cut with the lowest bounds of single ranks from the queue, and return it.

        Cuts are compared by the highest bound of a rank, then by the second highest, and so on.
        Returns None if the queue is empty.
        """
        while self._queue:
            _, cut = heapq.heappop(self._queue)
            if cut not in self.candidates:
                return cut
        return None

    def near_the_best(self) -> Cut | None:
        """Return the neighbor of the best cut that has the lowest bound of those not returned yet.

        Neighbors are those of :meth:`.Cutter.neighbours`; neighbors in :attr:`candidates` are left
        out. Returns None if there is no best cut, or if no such neighbor is left.
        """
        best = self.best
        if best is None:
            return None
        if best is not self._near_to:
            near = sorted(self.cut_bounds.cutter.neighbours(best.cut), key=self.cut_bounds.of)
            self._near, self._near_to = iter(near), best
        return next((cut for cut in self._near if cut not in self.candidates), None)

    def _problem(self, cut: Cut) -> Problem:
        bounds = self.cut_bounds
        profile, placement = bounds.cutter.profile.cut(cut), bounds.placement
        limit = room(profile, placement, bounds.limit)
        return Problem(profile, bounds.microbatches, placement, limit, bounds.objective)
