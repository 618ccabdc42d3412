"""Searches that restart: annealing moves single ops, so it stays close to where it began.

A list scheduler with random parameters builds a new schedule. It is annealed, without regard to the
best schedule, until nothing more is found; then the next one is built.
"""

from __future__ import annotations

import numpy as np

from ..core.incumbent import Incumbent
from ..core.stopping import OPS_A_SECOND
from ..core.worker_threads import Pieces
from .list_search import ListTuner
from .local_search import Annealer, FillingAnnealer
from .unrolling import ENDLESS, SmallSearch

LIST_ROUNDS = 8  # rounds of the list scheduler before annealing
VAIN_ROUNDS = 12  # rounds of annealing without success before a restart
ROOM = 16  # slices of work that must be left at a restart


class Restarts:
    """Local searches that do not start from the best schedule."""

    def __init__(self, best: Incumbent, rng: np.random.Generator) -> None:
        self._best, self._problem, self._rng = best, best.problem, rng
        self._search: SmallSearch | None = None

    @property
    def able(self) -> bool:
        going_on = self._search is not None and not self._search.ended
        seconds = ROOM * self._best.slice / OPS_A_SECOND
        return going_on or self._best.budget().seconds_left > seconds

    def round(self, best: Incumbent) -> bool:
        """Continue the current search; True if its own best improved.

        Its schedule is offered once it costs less than ``best``.
        """
        if self._search is None or self._search.ended:
            small = Incumbent(self._problem, best.bound, ENDLESS)
            self._search = SmallSearch(best, small, self._begun)
        small = self._search.small
        before = small.cost
        self._search.go_on(best)
        if small.cost < best.cost:
            assert small.method is not None
            order, _, cost = small.found()
            best.offer(order, small.method, cost)
        return small.cost < before

    def _begun(self, small: Incumbent) -> Pieces:
        lists = ListTuner(self._problem, self._rng)
        for _ in range(LIST_ROUNDS):
            lists.round(small)
            yield
        annealer, filling = (kind(self._problem, self._rng) for kind in (Annealer, FillingAnnealer))
        annealers, vain = [annealer, annealer, filling], 0
        while small.order is not None and vain < VAIN_ROUNDS:
            before = small.cost
            annealers[vain % len(annealers)].round(small)
            vain = 0 if small.cost < before else vain + 1
            yield
