"""The search over priorities of microbatches that are unlike, by their list scheduler.

Each stage is on a rank of its own.
"""

from __future__ import annotations

from itertools import islice

import numpy as np

from pipeloom.ir.model.problem import Objective, Problem

from ..construct.entry_orders import entry_orders
from ..construct.list_scheduler import Stages
from ..construct.priority_scheduler import (
    Priorities,
    Scratch,
    priority_schedule,
    random_priorities,
    tune_priorities,
)
from ..core.incumbent import Incumbent
from ..core.kernel_rng import seeded
from ..core.worker_threads import Pieces
from .local_search import COLD, SLICE, by_rank

OP = 5  # simulated ops that building one op of an order counts
POOL = 2  # priorities kept
FEW, DRAWN = 20, 100  # of so many drawn ones the best is the first schedule, or begins a round
FRESH, FIRST = 2, 12  # rounds that begin anew; those before any other method
SLICES = 3  # of work, in a round


class PriorityTuner:
    """Anneals priorities: each round from random ones, or from one of the best so far."""

    def __init__(self, problem: Problem, rng: np.random.Generator) -> None:
        self._stages, self._rng = Stages.of(problem), rng
        number, microbatches = self._stages.f.shape
        self._drawn = random_priorities(number, rng, tuple(entry_orders(problem)))
        self._makespan = problem.objective is Objective.MAKESPAN
        self._pool: list[tuple[float, Priorities]] = []
        self._state, self._rounds = seeded(rng), 0
        self._unit: float = float(self._stages.work.max()) / microbatches
        size = 3 * number * microbatches
        self._order, self._found = np.empty((2, size), dtype=np.int64)
        self._scratch = Scratch.of(problem.ranks, microbatches)
        self._offsets = 3 * microbatches * self._stages.offsets
        self._move = OP * size
        self._moves = max(10, SLICE // self._move)

    @property
    def able(self) -> bool:
        return self._unit > 0.0

    def round(self, best: Incumbent) -> None:
        self._rounds += 1
        new = self._rounds <= FRESH or not self._pool or self._rng.random() < 0.25
        priorities = (
            self._draw(best, DRAWN)
            if new
            else self._pool[int(self._rng.integers(len(self._pool)))][1].copy()
        )
        hot = self._unit * 10 ** self._rng.uniform(-2.0, -0.5)
        cost = np.inf
        for piece in range(SLICES):
            found, cost = tune_priorities(
                self._stages, priorities, self._makespan, self._found, best.cost,
                hot * COLD ** (piece / SLICES), hot * COLD ** ((piece + 1) / SLICES), self._moves,
                self._order, self._scratch, self._state, best.interrupt.flag,
            )  # fmt: skip
            best.work.spend(self._moves * self._move)
            if found < best.cost:
                best.offer(by_rank(self._found, self._offsets), "search")
            if best.over():
                return
        if np.isfinite(cost):
            self._pool = sorted([*self._pool, (cost, priorities)], key=lambda kept: kept[0])[:POOL]

    def pieces(self, best: Incumbent) -> Pieces:
        """The rounds before any other method: they are worth more than moves of single ops."""
        while self.able and self._rounds < FIRST:
            self.round(best)
            yield

    def first(self, best: Incumbent) -> None:
        """Offers the best of some random priorities."""
        if np.isfinite(self._cost(self._draw(best, FEW))):
            best.offer(by_rank(self._order, self._offsets), "search")

    def _draw(self, best: Incumbent, number: int) -> Priorities:
        drawn = list(islice(self._drawn, number))
        best.work.spend(number * self._move)
        return min(drawn, key=self._cost)

    def _cost(self, priorities: Priorities) -> float:
        return priority_schedule(
            self._stages, priorities, self._makespan, self._order, self._scratch
        )
