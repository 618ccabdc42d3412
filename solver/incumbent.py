"""The state of one solve: the best schedule so far, the bound, the clock, and who listens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

import numpy as np

from pipeloom.ir.ops import IntArray
from pipeloom.ir.problem import Problem
from pipeloom.ir.schedule import Report, Schedule, Status
from pipeloom.ir.simulate import timed

from .bounds import Bound
from .evaluate import Evaluator

CLOSED = 1e-6
"""Relative gap at which a schedule counts as optimal."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What a solve knows ``seconds`` after its start. ``gap`` is (incumbent - bound) / incumbent;
    ``source`` names what found the incumbent. Incumbent, gap and source are None before the first.
    """

    seconds: float
    incumbent: float | None
    bound: float
    gap: float | None
    source: str | None


Listener = Callable[[Progress], None]


class Incumbent:
    """Keeps the best order offered. ``over`` says when to stop: proven, out of time or told to."""

    def __init__(
        self,
        problem: Problem,
        bound: Bound,
        time_limit: float,
        progress: Listener | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> None:
        self.problem = problem
        self.bound = bound
        self.cost = float("inf")
        self.order: tuple[IntArray, ...] | None = None
        self.source: str | None = None
        self._began = self._told = monotonic()
        self._time_limit = time_limit
        self._progress = progress
        self._should_stop = should_stop

    @property
    def seconds(self) -> float:
        return monotonic() - self._began

    @property
    def seconds_left(self) -> float:
        return max(0.0, self._time_limit - self.seconds)

    @property
    def closed(self) -> bool:
        return self.cost - self.bound.value <= CLOSED * self.cost

    def over(self) -> bool:
        """Whether to stop; tells the listener about once a second."""
        if self._progress is not None and monotonic() - self._told >= 1.0:
            self._tell()
        told_to = self._should_stop is not None and self._should_stop()
        return self.closed or told_to or self.seconds_left <= 0.0

    def offer(self, order: tuple[IntArray, ...], source: str, cost: float | None = None) -> bool:
        """Takes ``order``, one array of packed ops a rank, where it beats the best so far."""
        cost = self._cost(order) if cost is None else cost
        if not cost < self.cost:
            return False
        self.order, self.cost, self.source = tuple(map(np.copy, order)), cost, source
        self._tell()
        return True

    def raise_bound(self, bound: Bound) -> None:
        """Takes a bound that a solver has proven, where it is better."""
        if bound.value > self.bound.value:
            self.bound = bound
            self._tell()

    def schedule(self, solver: str, seed: int) -> Schedule:
        """The best schedule with its times and its report."""
        assert self.order is not None
        # rounding may put a proven bound a hair above a cost that meets it; more would be a wrong proof
        assert self.bound.value <= self.cost * (1 + CLOSED), f"{self.bound} above {self.cost}"
        bound = min(self.bound.value, self.cost)
        report = Report(
            objective=self.problem.objective,
            family=self.source or "",
            status=Status.OPTIMAL if self.closed else Status.FEASIBLE,
            lower_bound=bound,
            bound_name=self.bound.name,
            solver=solver,
            solve_seconds=self.seconds,
            seed=seed,
        )
        return timed(Schedule(self.problem, self.order, report=report))

    def _cost(self, order: tuple[IntArray, ...]) -> float:
        offsets = np.cumsum([0, *map(len, order)]).astype(np.int64)
        return Evaluator(self.problem, offsets).cost(np.concatenate(order))

    def _tell(self) -> None:
        if self._progress is None:
            return
        self._told = monotonic()
        found = self.order is not None
        gap = (self.cost - self.bound.value) / self.cost if found and self.cost > 0 else 0.0
        self._progress(
            Progress(
                self.seconds,
                self.cost if found else None,
                self.bound.value,
                max(0.0, gap) if found else None,
                self.source,
            )
        )
