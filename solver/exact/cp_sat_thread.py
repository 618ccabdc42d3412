"""Runs CP-SAT in a thread of its own, so that the caller's thread can receive Ctrl-C."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from ortools.sat.python import cp_model

from ..core.stopping import POLL, StoppingCriterion

Read = TypeVar("Read")


class CpSatThread(cp_model.CpSolverSolutionCallback, Generic[Read]):
    """A context manager that solves the model ``cp`` in a thread of its own.

    The thread starts with the context, and is stopped at the context's end. ``read`` converts each
    solution, in that thread. ``parameters``: the values of CP-SAT's parameters, by name.
    :meth:`next` returns the converted solutions, and bounds on the objective.

    After the thread has ended, ``status`` is CP-SAT's status, ``work`` its deterministic time in
    seconds, and ``bound`` the best bound proven on the objective, or None if the model has no
    solution.
    """

    def __init__(
        self,
        cp: cp_model.CpModel,
        read: Callable[[cp_model.CpSolverSolutionCallback], Read],
        **parameters: object,
    ) -> None:
        super().__init__()
        self._cp, self._read = cp, read
        self._news: queue.Queue[Read | float | None] = queue.Queue()
        self._solver = cp_model.CpSolver()
        self._solver.best_bound_callback = self._news.put
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._error: BaseException | None = None
        self.status = cp_model.UNKNOWN
        self.bound: float | None = None
        self.work = 0.0
        self._solver.parameters.catch_sigint_signal = False
        # otherwise ortools 9.15 proves bounds above the cost of a schedule that is a solution of
        # the model
        self._solver.parameters.presolve_inclusion_work_limit = 0
        for name, value in parameters.items():
            setattr(self._solver.parameters, name, value)

    @property
    def refuted(self) -> bool:
        return self.status == cp_model.INFEASIBLE

    def _run(self) -> None:
        try:
            self.status = self._solver.solve(self._cp, self)
            self.work = self._solver.response_proto.deterministic_time
            assert self.status != cp_model.MODEL_INVALID, self._cp.validate()
            if self.status != cp_model.INFEASIBLE:
                self.bound = self._solver.best_objective_bound
        except BaseException as error:  # raised in the caller's thread
            self._error = error
        finally:
            self._news.put(None)

    def on_solution_callback(self) -> None:
        self._news.put(self._read(self))

    def next(self, should_stop: StoppingCriterion) -> Read | float | None:
        """Wait for the next converted solution or the next bound (a float), and return it.

        Returns None when the search has ended. While waiting, it calls ``should_stop`` repeatedly,
        and ends the search if that returns true. An exception that was raised in the thread is
        raised here.
        """
        while True:
            try:
                news = self._news.get(timeout=POLL)
                if self._error is not None:
                    raise self._error
                return news
            except queue.Empty:
                if should_stop():
                    self._solver.stop_search()

    def __enter__(self) -> CpSatThread[Read]:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._solver.stop_search()
        self._thread.join()
