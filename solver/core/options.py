"""The options of the optimizer, and the types of the arguments that they contain."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TypeAlias

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.ops import IntArray
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule

from .progress import Listener
from .stopping import NEVER, Budget, StoppingCriterion

THREADS = "PIPELOOM_THREADS"
"""The environment variable with the number of cores that this process may use."""
LEAST_WORKERS = 2
"""The minimum number of worker threads of a solve."""
MOST_SEEDS = 1 << 31
"""The number of different seeds that the exact solvers accept."""
MILLION = 1e6
Order: TypeAlias = tuple[IntArray, ...]
"""The order of ops: for each rank an array of its packed ops."""
Memory: TypeAlias = Callable[[Schedule], Sequence[float]]
"""A function that returns each rank's peak of all memory in a schedule, in the profile's unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveOptions:
    """The options of :func:`pipeloom.solver.optimize.optimize`.

    ``solver``: ``auto``, ``heuristic``, ``cp-sat`` or ``milp``. ``time_limit``: seconds.
    ``work_limit``: millions of simulated ops; a hundred million take about a second on one core.
    With a work limit the same ``seed`` gives the same schedule in every run: ``time_limit`` and the
    number of cores have no influence, each worker has the whole limit, and computations other than
    simulation are converted to simulated ops by their usual duration. ``progress`` is called soon
    after an improvement and about once a second. When ``should_stop`` returns true, the solve ends
    and returns the best schedule so far.

    ``recompute_all``: recompute whatever can be recomputed. ``start``: an order to begin with, for
    the same stages on the same ranks; ignored if it does not fit in memory. ``memory``: computes
    the peak of all memory on each rank, which must fit in ``device_memory``; used only if weights
    are streamed. ``by_step``: compare schedules with streamed weights by their steady step,
    the time of an iteration when iterations follow each other
    (:func:`pipeloom.ir.cost.steady_state.send_points.step_between_ops`), instead of the objective.
    ``progress`` then receives the step and its bound; the report is about the objective in any
    case.
    """

    solver: str = "auto"
    time_limit: float = 60.0
    work_limit: float | None = None
    seed: int = 0
    progress: Listener | None = None
    should_stop: StoppingCriterion = NEVER
    recompute_all: bool = False
    start: Order | None = None
    memory: Memory | None = None
    by_step: bool = False

    @property
    def ops(self) -> float:
        """The work limit in simulated ops; inf if there is none."""
        return inf if self.work_limit is None else self.work_limit * MILLION

    @property
    def budget(self) -> Budget:
        """A budget that starts now, with the work limit if there is one, else the time limit."""
        return Budget(self.time_limit if self.work_limit is None else inf, self.ops)

    def share(self, share: float) -> SolveOptions:
        """A copy in which the time and work limits are multiplied by ``share``, 0 to 1."""
        work = None if self.work_limit is None else self.work_limit * share
        return replace(self, time_limit=self.time_limit * share, work_limit=work)

    def part(self, budget: Budget, should_stop: StoppingCriterion) -> SolveOptions:
        """Options for a subproblem: the same solver and seed, with the limits of ``budget``.

        ``should_stop``: replaces the criterion of these options; all other options have their
        defaults.
        """
        return SolveOptions(
            solver=self.solver,
            time_limit=budget.time.left,
            work_limit=None if budget.work.ops == inf else budget.work.ops / MILLION,
            seed=self.seed,
            should_stop=should_stop,
        )


Optimizer: TypeAlias = Callable[[Problem, SolveOptions], Schedule]


def cores() -> int:
    """The number of CPU cores to use: the value of :data:`THREADS`, or all if it is not set.

    All are those that are available to this process. Raises InputError if the value is not a
    positive whole number below a million.
    """
    given = os.environ.get(THREADS)
    if given is not None:
        if not (given.isascii() and given.isdigit() and 0 < len(given) < 7 and int(given)):
            raise InputError(f"{THREADS}: expected a whole number >= 1, got {given!r}")
        return int(given)
    available = getattr(os, "sched_getaffinity", None)
    return len(available(0)) if available else os.cpu_count() or 1
