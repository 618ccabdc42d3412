"""Searches of related problems, whose schedules become schedules of the problem.

A related problem has, for instance, fewer microbatches, no recomputation, or more memory; or it is
the problem itself, begun anew far from the best schedule.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import numpy as np

from pipeloom.ir.model.problem import Problem

from ..bounds import lower_bounds
from ..core.incumbent import SLICES, Incumbent
from ..core.options import SolveOptions
from ..core.overlap_relaxation import without_overlap
from ..core.stopping import OPS_A_SECOND
from ..core.worker_threads import Pieces, Worker
from .list_search import ListTuner
from .local_search import Annealer, FillingAnnealer

ENDLESS = SolveOptions(work_limit=1e290)  # its search never reads the clock
SMALL_WORK = 4  # slices of work in a round of such a search
LIST_ROUNDS = 8  # rounds of the list scheduler before annealing
VAIN_ROUNDS = 12  # rounds of annealing without success before a restart
ROOM = 16  # slices of work that must be left at a restart

Take = Callable[[Incumbent, Incumbent], None]
"""Offers to the first incumbent what becomes of the best schedule of the second one."""


class SmallSearch:
    """The search of another problem, continued in rounds; ``ended``: nothing is left to do."""

    def __init__(self, best: Incumbent, small: Incumbent, search: Worker) -> None:
        small.interrupt, small.slice = best.interrupt, best.slice
        self.small, self._pieces, self.ended = small, search(small), False

    @property
    def able(self) -> bool:
        return not (self.ended or self.small.work())

    def go_on(self, best: Incumbent) -> None:
        small, before = self.small, self.small.work.used
        self.ended, most = True, SMALL_WORK * best.slice
        for _ in self._pieces:
            if small.over() or small.work.used - before > most:
                self.ended = small.closed
                break
        best.work.spend(small.work.used - before)


class RelatedSearch(SmallSearch):
    """A method: ``take`` is called when the best schedule of the related problem has improved.

    ``share``: it ends after this share of all time or work, if given. No pairs are made in it.
    Raises InfeasibleError if none of its schedules keeps the memory limit.
    """

    def __init__(
        self,
        best: Incumbent,
        problem: Problem,
        search: Worker,
        take: Take,
        share: float | None = None,
    ) -> None:
        problem = without_overlap(problem)
        super().__init__(best, Incumbent(problem, next(lower_bounds(problem)), ENDLESS), search)
        self._take, self._taken = take, inf
        if share is not None:
            self.small.work.ops = best.part(share)
            self.small.slice = min(best.slice, self.small.work.ops / SLICES)

    def round(self, best: Incumbent) -> None:
        self.go_on(best)
        if self.small.cost < self._taken:
            self._taken = self.small.cost
            self._take(best, self.small)


def take_it(best: Incumbent, small: Incumbent) -> None:
    """Offer the schedule as it is."""
    order, pairs, _ = small.found()
    assert small.method is not None
    best.offer(order, small.method, pairs=pairs)


class Restarts:
    """Searches that do not start from the best schedule, as annealing stays close to its start.

    A list scheduler with random parameters builds a new schedule. It is annealed until nothing more
    is found; then the next one is built.
    """

    def __init__(self, best: Incumbent, rng: np.random.Generator) -> None:
        self._best, self._rng = best, rng
        self._search: RelatedSearch | None = None

    @property
    def able(self) -> bool:
        if self._search is not None and self._search.able:
            return True
        return self._best.budget().seconds_left > ROOM * self._best.slice / OPS_A_SECOND

    def round(self, best: Incumbent) -> bool:
        """Continue; returns whether the search has a better schedule than before."""
        if self._search is None or not self._search.able:
            self._search = RelatedSearch(best, best.problem, self._begun, take_it)
        before = self._search.small.cost
        self._search.round(best)
        return self._search.small.cost < before

    def _begun(self, small: Incumbent) -> Pieces:
        lists = ListTuner(small.problem, self._rng)
        for _ in range(LIST_ROUNDS):
            lists.round(small)
            yield
        annealer = Annealer(small.problem, self._rng)
        filling, vain = FillingAnnealer(small.problem, self._rng), 0
        while small.order is not None and vain < VAIN_ROUNDS:
            before = small.cost
            (annealer, annealer, filling)[vain % 3].round(small)
            vain = 0 if small.cost < before else vain + 1
            yield
