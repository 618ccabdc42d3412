"""Searches for the parameters of the list schedulers: random draws, then simulated annealing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import islice
from typing import Generic, TypeVar

import numpy as np

from pipeloom.ir.model.problem import Objective, Problem

from ..construct.entry_orders import entry_orders
from ..construct.list_parameters import ListParameters, Stages, list_parameters
from ..construct.list_scheduler import list_schedule, tune_list
from ..construct.priority_scheduler import (
    Priorities,
    Scratch,
    priority_schedule,
    random_priorities,
    tune_priorities,
)
from ..core.incumbent import Incumbent
from ..core.kernels import seeded
from ..core.methods import Method
from ..core.unlike import typical
from ..core.worker_threads import Pieces
from .local_search import SLICES, Heat, by_rank, cooled

LIST_OP = 5  # work to build an op, in simulated ops, per stage of a rank
NEAR = 1.01  # a search continues while its own best cost is at most this multiple of the best

Parameters = TypeVar("Parameters", ListParameters, Priorities)


class ParameterTuner(ABC, Generic[Parameters]):
    """Simulated annealing of the parameters of a list scheduler.

    ``kept``: number of best parameters that are kept. ``drawn``: random parameters of which the
    best are annealed; ``first_drawn``: those drawn for the first schedule. ``first_rounds``: rounds
    before any other method.
    """

    kept: int
    drawn: int
    first_drawn: int
    first_rounds: int

    def __init__(self, problem: Problem, rng: np.random.Generator) -> None:
        self._stages, self._rng, self._rounds = Stages.of(problem), rng, 0
        self._makespan = problem.objective is Objective.MAKESPAN
        self._random: Iterator[Parameters] = self._parameters(problem)
        self._pool: list[tuple[float, Parameters]] = []
        self._state = seeded(rng)
        number, microbatches = len(self._stages.f), self._stages.names.shape[1]
        self._unit: float = float(self._stages.work.max()) / microbatches
        size = 3 * number * microbatches
        self._order, self._found = np.empty((2, size), dtype=np.int64)
        self._offsets = 3 * microbatches * self._stages.offsets
        self._move = LIST_OP * size * max(1, number // problem.ranks)

    @abstractmethod
    def _parameters(self, problem: Problem) -> Iterator[Parameters]:
        """Random parameters, without end."""

    @abstractmethod
    def _begin(self, best: Incumbent) -> tuple[Parameters, Iterator[Heat]]:
        """The parameters that a round starts from, and the temperatures of its pieces."""

    @abstractmethod
    def _tune(
        self, best: Incumbent, parameters: Parameters, heat: Heat, moves: int
    ) -> tuple[float, float]:
        """Anneal with ``moves`` moves; the costs of the order found and of the last parameters."""

    @abstractmethod
    def _cost(self, parameters: Parameters) -> float: ...

    @property
    def able(self) -> bool:
        return self._unit > 0.0

    def round(self, best: Incumbent) -> None:
        self._rounds += 1
        parameters, heats = self._begin(best)
        cost, moves = float("inf"), max(10, int(best.slice // self._move))
        for heat in heats:
            found, cost = self._tune(best, parameters, heat, moves)
            best.work.spend(moves * self._move)
            if found < best.cost:
                best.offer(by_rank(self._found, self._offsets), Method.LIST)
            if best.over():
                return
        self._keep(best, cost, parameters)

    def pieces(self, best: Incumbent) -> Pieces:
        """Run the rounds that come before any other method.

        They find more than moves of single ops if no family fits or microbatches are unlike.
        """
        while self.able and self._rounds < self.first_rounds:
            self.round(best)
            yield

    def first(self, best: Incumbent) -> None:
        """Offer the schedule of the best of some random parameters."""
        if np.isfinite(self._cost(self._draw(best, self.first_drawn))):
            best.offer(by_rank(self._order, self._offsets), Method.LIST)

    def _keep(self, best: Incumbent, cost: float, parameters: Parameters) -> None:
        if np.isfinite(cost):
            self._pool.append((cost, parameters))
            self._pool = sorted(self._pool, key=lambda kept: kept[0])[: self.kept]

    def _pooled(self) -> Parameters:
        _, parameters = self._pool[int(self._rng.integers(len(self._pool)))]
        return parameters.copy()

    def _draw(self, best: Incumbent, number: int) -> Parameters:
        """The best of ``number`` random parameters."""
        drawn = list(islice(self._random, number))
        best.work.spend(number * self._move)
        return min(drawn, key=self._cost)


class ListTuner(ParameterTuner[ListParameters]):
    """Parameter search of the list scheduler for any map of stages to ranks.

    It gives up if its first rounds have not come near the best schedule.
    """

    kept, drawn, first_drawn, first_rounds = 4, 10, 10, 5

    def __init__(self, problem: Problem, rng: np.random.Generator) -> None:
        super().__init__(problem, rng)
        self._near = True
        self._ends = np.empty((2, len(self._stages.f), self._stages.names.shape[1]))
        self._spans = np.empty(problem.ranks)

    @property
    def able(self) -> bool:
        return super().able and (self._near or self._rounds < self.kept)

    def _parameters(self, problem: Problem) -> Iterator[ListParameters]:
        entries = tuple(entry_orders(problem)) if problem.profile.unlike else ()
        return list_parameters(Stages.of(typical(problem)), self._rng, entries)

    def _begin(self, best: Incumbent) -> tuple[ListParameters, Iterator[Heat]]:
        new = len(self._pool) < self.kept or self._rng.random() < 1 / self.kept
        parameters = self._draw(best, self.drawn) if new else self._pooled()
        hot = self._unit * (0.5 if new else 10 ** self._rng.uniform(-2.0, 0.0))
        return parameters, islice(cooled(hot), 1 if new else SLICES)

    def _tune(
        self, best: Incumbent, parameters: ListParameters, heat: Heat, moves: int
    ) -> tuple[float, float]:
        return tune_list(
            self._stages, parameters, self._makespan, self._found, best.cost, *heat, moves,
            self._order, self._ends, self._spans, self._state, best.interrupt.flag,
        )  # fmt: skip

    def _keep(self, best: Incumbent, cost: float, parameters: ListParameters) -> None:
        super()._keep(best, cost, parameters)
        self._near = bool(self._pool) and self._pool[0][0] <= best.cost * NEAR

    def _cost(self, parameters: ListParameters) -> float:
        return list_schedule(
            self._stages, parameters, self._makespan, self._order, self._ends, self._spans
        )


class PriorityTuner(ParameterTuner[Priorities]):
    """Parameter search of the list scheduler for unlike microbatches, one stage per rank."""

    kept, drawn, first_drawn, first_rounds = 2, 100, 20, 12

    def __init__(self, problem: Problem, rng: np.random.Generator) -> None:
        super().__init__(problem, rng)
        self._scratch = Scratch.of(problem.ranks, problem.microbatches)

    def _parameters(self, problem: Problem) -> Iterator[Priorities]:
        return random_priorities(problem.stages, self._rng, tuple(entry_orders(problem)))

    def _begin(self, best: Incumbent) -> tuple[Priorities, Iterator[Heat]]:
        new = self._rounds <= self.kept or not self._pool or self._rng.random() < 0.25
        parameters = self._draw(best, self.drawn) if new else self._pooled()
        hot = self._unit * 10 ** self._rng.uniform(-2.0, -0.5)
        return parameters, cooled(hot, 3)

    def _tune(
        self, best: Incumbent, parameters: Priorities, heat: Heat, moves: int
    ) -> tuple[float, float]:
        return tune_priorities(
            self._stages, parameters, self._makespan, self._found, best.cost, *heat, moves,
            self._order, self._scratch, self._state, best.interrupt.flag,
        )  # fmt: skip

    def _cost(self, parameters: Priorities) -> float:
        return priority_schedule(
            self._stages, parameters, self._makespan, self._order, self._scratch
        )
