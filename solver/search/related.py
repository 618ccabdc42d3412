"""Searches of related problems, whose schedules are turned into schedules of the problem.

A related problem has, for instance, fewer microbatches, no recomputation, or more memory. Or it is
the problem itself, and the search starts far from the best schedule.
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

ENDLESS = SolveOptions(work_limit=1e290)  # options with which a search never reads the clock
SMALL_WORK = 4  # slices of work in one round of the search of a related problem
LIST_ROUNDS = 8  # rounds of the list scheduler before annealing
VAIN_ROUNDS = 12  # consecutive rounds of annealing without success before a restart
ROOM = 16  # slices of work that must be left at a restart

Take = Callable[[Incumbent, Incumbent], None]
"""A function of two incumbents, that of the problem and that of a related problem. It turns the
best schedule of the second into schedules of the problem, and offers these to the first."""


class RelatedSearch:
    """A method that searches a related problem in rounds, without pairs of F and BW that overlap.

    ``problem``: the related problem. ``search``: the worker that searches it. ``take``: the
    function that uses its best schedule; it is called after each round in which that schedule has
    improved. ``share``: the fraction of the whole solve's time or work after which the search ends;
    None means no limit. ``small``: the incumbent of the related problem. Raises InfeasibleError if
    no schedule of the related problem fits in memory.
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
        small = self.small = Incumbent(problem, next(lower_bounds(problem)), ENDLESS)
        small.interrupt, small.slice = best.interrupt, best.slice
        self._pieces, self._ended = search(small), False
        self._take, self._taken = take, inf
        if share is not None:
            small.work.ops = best.part(share)
            small.slice = min(best.slice, small.work.ops / SLICES)

    @property
    def able(self) -> bool:
        return not (self._ended or self.small.work())

    def round(self, best: Incumbent) -> None:
        small, before = self.small, self.small.work.used
        self._ended, most = True, SMALL_WORK * best.slice
        for _ in self._pieces:
            if small.over() or small.work.used - before > most:
                self._ended = small.closed
                break
        best.work.spend(small.work.used - before)
        if self.small.cost < self._taken:
            self._taken = self.small.cost
            self._take(best, self.small)


def take_it(best: Incumbent, small: Incumbent) -> None:
    """Offer the best schedule of ``small`` to ``best``, unchanged."""
    order, pairs, _ = small.found()
    assert small.method is not None
    best.offer(order, small.method, pairs=pairs)


class Restarts:
    """A method that starts far from the best schedule, because annealing stays close to its start.

    A list scheduler with random parameters builds a new schedule. The schedule is annealed until
    :data:`VAIN_ROUNDS` successive rounds find nothing better; then the next schedule is built.
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
        """Continue the search from the current start, or begin the next one.

        Returns whether that search has found a better schedule than it knew before. It need not be
        better than that of ``best``.
        """
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
