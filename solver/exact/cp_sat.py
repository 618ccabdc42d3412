"""CP-SAT (ortools), in a thread of its own."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable

import numpy as np
from ortools.sat.python import cp_model

from pipeloom.ir.problem import Problem
from pipeloom.ir.schedule import Report, Schedule

from ..allowance import OPS_A_SECOND
from .cp_sat_model import Model
from .formulation import Formulation
from .recovery import Positions, cost_of, to_schedule
from .result import ExactResult

WORKERS = 2
_POLL = 0.05  # seconds between two looks at should_stop


def solve(
    problem: Problem,
    *,
    incumbent: Schedule | None,
    lower_bound: float,
    time_limit: float,
    seed: int,
    work_limit: float = math.inf,
    on_solution: Callable[[Schedule], None] | None = None,
    on_bound: Callable[[float], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    workers: int = WORKERS,
) -> ExactResult:
    """See :class:`pipeloom.solver.exact.Backend`; ``workers`` threads search.

    One worker that ends before ``time_limit`` gives the same result for the same ``seed``; where
    work is limited there is one.
    """
    deadline = time.monotonic() + time_limit
    model = Model.of(Formulation.of(problem), incumbent, lower_bound)
    best = incumbent
    with _Search(model, deadline, seed, workers, work_limit) as search:
        while (news := search.next(should_stop)) is not None:
            if isinstance(news, float):
                if on_bound:
                    on_bound(_proven(model, news, best, lower_bound))
                continue
            found = to_schedule(
                model.formulation, news, Report(problem.objective, "ilp"), model.slack
            )
            if found is not None and (best is None or cost_of(found) < cost_of(best)):
                best = found
                if on_solution:
                    on_solution(found)
    complete = search.status in (cp_model.OPTIMAL, cp_model.INFEASIBLE)
    return ExactResult(best, _bound(model, search, best, lower_bound), complete)


def _bound(model: Model, search: _Search, best: Schedule | None, known: float) -> float:
    """In the profile's unit."""
    if search.status == cp_model.INFEASIBLE and best is None:
        return math.inf
    return known if search.bound is None else _proven(model, search.bound, best, known)


def _proven(model: Model, bound: float, best: Schedule | None, known: float) -> float:
    """What CP-SAT's ``bound`` in ticks proves, in the profile's unit."""
    proven = (bound - model.rounding) / model.ticks.per_unit
    return min(max(known, proven), math.inf if best is None else cost_of(best))


class _Search(cp_model.CpSolverSolutionCallback):
    """A solve in a thread of its own, so that the caller's stays open to Ctrl-C."""

    def __init__(
        self, model: Model, deadline: float, seed: int, workers: int, work_limit: float
    ) -> None:
        super().__init__()
        self._model = model
        self._news: queue.Queue[Positions | float | None] = queue.Queue()
        self._solver = cp_model.CpSolver()
        self._solver.best_bound_callback = self._news.put
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._error: BaseException | None = None
        self.status = cp_model.UNKNOWN
        self.bound: float | None = None
        parameters = self._solver.parameters
        parameters.max_time_in_seconds = max(deadline - time.monotonic(), 0.01)
        parameters.max_deterministic_time = work_limit / OPS_A_SECOND
        parameters.num_workers = workers if math.isinf(work_limit) else 1
        parameters.random_seed = seed % 2**31
        parameters.catch_sigint_signal = False

    def _run(self) -> None:
        try:
            self.status = self._solver.solve(self._model.cp, self)
            assert self.status != cp_model.MODEL_INVALID, self._model.cp.validate()
            if self.status != cp_model.INFEASIBLE:
                self.bound = self._solver.best_objective_bound
        except BaseException as error:  # raised in the caller's thread
            self._error = error
        finally:
            self._news.put(None)

    def on_solution_callback(self) -> None:
        start = np.array([self.value(v) for v in self._model.start], dtype=np.float64)
        first = {pair: bool(self.value(v)) for pair, v in self._model.before.items()}
        order = self._model.formulation.ordered(first)
        self._news.put(Positions(start / self._model.ticks.per_unit, order))

    def next(self, should_stop: Callable[[], bool] | None) -> Positions | float | None:
        """The next solution, or bound in ticks; None once the search has ended."""
        while True:
            try:
                news = self._news.get(timeout=_POLL)
                if self._error is not None:
                    raise self._error
                return news
            except queue.Empty:
                if should_stop and should_stop():
                    self._solver.stop_search()

    def __enter__(self) -> _Search:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._solver.stop_search()
        self._thread.join()
