"""How a problem is solved: the options of the optimizer, and its type."""

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
"""The environment variable with the cores that this process is to use."""
LEAST_WORKERS = 2
"""Worker threads of a solve at least."""
Order: TypeAlias = tuple[IntArray, ...]
"""Packed ops, one array a rank."""
Memory: TypeAlias = Callable[[Schedule], Sequence[float]]
"""The most that each rank has to hold in all, in the profile's unit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveOptions:
    """The options of :func:`pipeloom.solver.optimize.optimize`.

    ``solver``: ``auto``, ``heuristic``, ``cp-sat`` or ``milp``. ``time_limit``: seconds.
    ``work_limit``: millions of simulated ops (about a hundred of them take a second on a core);
    with it the same ``seed`` gives the same schedule on every run, and ``time_limit`` does not
    count, nor does the number of cores: every worker has that much work, other work counts as what
    takes about as long. ``progress`` is called soon after an improvement and about once a second;
    ``should_stop`` turning true ends the solve, which returns the best so far.

    ``recompute_all``: whatever may be recomputed is. ``start``: an order to begin with, of the same
    stages on the same ranks, left out where memory does not hold it. ``memory``: what a schedule
    holds in all, which streamed weights hold against ``device_memory``. ``by_step``: schedules with
    streamed weights are compared by their step where iterations follow each other
    (:func:`pipeloom.ir.cost.steady_state.send_points.step_between_ops`), not by the objective;
    ``progress`` is about the step then and its bound, the report about the objective all the same.
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
        """The limit on work in simulated ops; infinite where there is none."""
        return inf if self.work_limit is None else self.work_limit * 1e6

    @property
    def budget(self) -> Budget:
        """The budget from now on: work alone where that is limited."""
        return Budget(self.time_limit if self.work_limit is None else inf, self.ops)

    def share(self, share: float) -> SolveOptions:
        work = None if self.work_limit is None else self.work_limit * share
        return replace(self, time_limit=self.time_limit * share, work_limit=work)

    def part(self, budget: Budget, should_stop: StoppingCriterion) -> SolveOptions:
        """The same solver and seed for a part of the problem, within ``budget``."""
        return SolveOptions(
            solver=self.solver,
            time_limit=budget.time.left,
            work_limit=None if budget.work.ops == inf else budget.work.ops / 1e6,
            seed=self.seed,
            should_stop=should_stop,
        )


Optimizer: TypeAlias = Callable[[Problem, SolveOptions], Schedule]


def cores() -> int:
    """The cores to use: all, or as many as :data:`THREADS` says. Raises InputError."""
    given = os.environ.get(THREADS)
    if given is not None:
        if not (given.isascii() and given.isdigit() and 0 < len(given) < 7 and int(given)):
            raise InputError(f"{THREADS}: expected a whole number >= 1, got {given!r}")
        return int(given)
    available = getattr(os, "sched_getaffinity", None)
    return len(available(0)) if available else os.cpu_count() or 1
