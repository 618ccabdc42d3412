"""Search for the parameters of the list scheduler: random draws, then simulated annealing.

The list scheduler is that of :mod:`..construct.list_scheduler`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import numpy as np

from pipeloom.ir.model.ops import FloatArray
from pipeloom.ir.model.problem import Objective, Problem

from ..construct.entry_orders import entry_orders
from ..construct.list_parameters import ListKind, ListParameters, Moves, Stages, list_parameters
from ..construct.list_scheduler import ListRun, list_schedule, tune_list
from ..core.incumbent import Incumbent
from ..core.kernels import seeded
from ..core.methods import Method
from ..core.options import Order
from ..core.unlike import typical
from ..core.worker_threads import Pieces
from .local_search import SLICES, Heat, cooled

LIST_OP = 5  # work per op that is built, in simulated ops, times the number of stages per rank
NEAR = 1.01  # a search goes on while its own best cost is at most this multiple of the best known
DRAWN = {
    ListKind.ONE_STAGE: 100,
    ListKind.SEVERAL_STAGES: 10,
    ListKind.REMAT: 30,
    ListKind.UNLIKE: 100,
}
"""Number of random settings of the parameters, of which the best one is annealed."""
KEPT, KEPT_UNLIKE = 4, 2  # number of the best settings that are kept
FIRST, FIRST_UNLIKE = 5, 12  # number of rounds before any other method runs


class ListTuner:
    """Simulated annealing of the parameters of the list scheduler.

    If microbatches are equal, the search ends early when its first rounds have not come near the
    cost of the best schedule. ``rest``: the memory that an R restores on each stage, (S,); None if
    nothing is recomputed.
    """

    def __init__(
        self, problem: Problem, rng: np.random.Generator, rest: FloatArray | None = None
    ) -> None:
        self._stages, self._rng, self._rounds = Stages.of(problem), rng, 0
        self._makespan = problem.objective is Objective.MAKESPAN
        unlike = problem.profile.unlike
        alike = Stages.of(typical(problem)) if unlike else self._stages
        self._kind = ListKind.of(alike, remat=rest is not None, unlike=unlike)
        entries = tuple(entry_orders(problem)) if unlike else ()
        self._random = list_parameters(alike, self._kind, rng, entries)
        self._rest, self._changes = rest, Moves.of(alike, self._kind)
        self._several = self._kind is ListKind.SEVERAL_STAGES
        self._unlike = self._kind is ListKind.UNLIKE
        self._drawn = DRAWN[self._kind]
        self._kept, self._first = (KEPT_UNLIKE, FIRST_UNLIKE) if self._unlike else (KEPT, FIRST)
        self._pool: list[tuple[float, ListParameters]] = []
        self._near, self._state = True, seeded(rng)
        self._unit = float(self._stages.work.max()) / self._stages.names.shape[1]
        ops = 3 if rest is None else 4
        self._run, self._best = ListRun.of(self._stages, ops), ListRun.of(self._stages, ops)
        several = max(1, len(self._stages.owner) // problem.ranks)
        self._move = LIST_OP * len(self._run.order) * several

    @property
    def able(self) -> bool:
        going_on = self._near or self._unlike or self._rounds < self._kept
        return self._unit > 0.0 and going_on

    def round(self, best: Incumbent) -> None:
        for rows in self.orders(best, best.cost):
            best.offer(rows, Method.LIST)

    def orders(self, best: Incumbent, most: float) -> Iterator[Order]:
        """Run one round of annealing, and yield ever cheaper orders that cost less than ``most``.

        ``best``: the incumbent; it limits the round's time and work. The orders are not offered to
        it.
        """
        self._rounds += 1
        parameters, heats = self._begin(best)
        cost, moves = float("inf"), max(10, int(best.slice // self._move))
        for heat in heats:
            found, cost = tune_list(
                self._stages, parameters, self._rest, self._keys(parameters), self._changes,
                self._makespan, self._best, most, *heat, moves, self._run, self._state,
                best.interrupt.flag,
            )  # fmt: skip
            best.work.spend(moves * self._move)
            if found < most:
                most = found
                yield self._best.rows(self._stages)
            if best.over():
                return
        if np.isfinite(cost):
            self._pool = sorted([*self._pool, (cost, parameters)], key=lambda each: each[0])
            del self._pool[self._kept :]
        self._near = bool(self._pool) and self._pool[0][0] <= best.cost * NEAR

    def pieces(self, best: Incumbent) -> Pieces:
        """Run the first rounds, and yield after each of them.

        They run before any other method: if no family's schedule fits in memory, or if microbatches
        are unlike, they find better schedules than moves of single ops do.
        """
        while self.able and self._rounds < self._first:
            self.round(best)
            yield

    def first(self, best: Incumbent) -> None:
        """Draw several random settings, and offer the cheapest schedule that they give.

        Nothing is offered if none of the settings gives a complete order.
        """
        if (rows := self.first_order(best)) is not None:
            best.offer(rows, Method.LIST)

    def first_order(self, best: Incumbent) -> Order | None:
        """Draw several random settings of the parameters, and return the cheapest of their orders.

        Returns None if none of the settings gives a complete order. ``best``: the incumbent, which
        counts the work; nothing is offered to it.
        """
        complete = np.isfinite(self._cost(self._draw(best)))
        return self._run.rows(self._stages) if complete else None

    def _begin(self, best: Incumbent) -> tuple[ListParameters, Iterator[Heat]]:
        """Return the parameters that a round starts from, and the temperatures of its pieces.

        The parameters are newly drawn until enough settings are kept; after that they are usually a
        copy of a kept setting.
        """
        new = len(self._pool) < self._kept or self._rng.random() < 1 / KEPT
        if new:
            parameters = self._draw(best)
        else:
            parameters = self._pool[int(self._rng.integers(len(self._pool)))][1].copy()
        if self._several:
            hot = self._unit * (0.5 if new else 10 ** self._rng.uniform(-2.0, 0.0))
            return parameters, islice(cooled(hot), 1 if new else SLICES)
        hottest = -0.5 if self._unlike else 0.0
        return parameters, cooled(self._unit * 10 ** self._rng.uniform(-2.5, hottest))

    def _draw(self, best: Incumbent) -> ListParameters:
        """Draw some random settings of the parameters, and return the one with the lowest cost."""
        best.work.spend(self._drawn * self._move)
        return min(islice(self._random, self._drawn), key=self._cost)

    def _cost(self, parameters: ListParameters) -> float:
        keys = self._keys(parameters)
        return list_schedule(self._stages, parameters, self._rest, keys, self._makespan, self._run)

    def _keys(self, parameters: ListParameters) -> FloatArray | None:
        return parameters.keys if self._kind.overtakes else None
