"""Exact solvers of orders of ops, described by :mod:`.instance`: one CP-SAT model and one ILP.

Importing this package imports neither ortools nor pulp; the first use of a solver does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule

from ..core.options import SolveOptions


@dataclass(frozen=True, slots=True)
class ExactResult:
    """``schedule``: the best schedule found, timed, or the incumbent; None if there is neither.

    ``lower_bound``: no valid schedule costs less; ``inf`` if none is valid. ``complete``: the
    solver has finished, so more time would not help.
    """

    schedule: Schedule | None
    lower_bound: float
    complete: bool = False


class Backend(Protocol):
    """Solves a problem to optimality, or as far as the limits allow.

    ``incumbent``: the best schedule known; only better ones are searched. ``lower_bound``: a bound
    known to be valid. ``on_solution`` receives every better schedule, timed, and ``on_bound`` every
    better bound found on the way; both are called in the caller's thread. ``should_stop`` is called
    several times per second. Ctrl-C ends the solver and raises KeyboardInterrupt. Of ``options``
    only the limits, the seed and ``should_stop`` are used. With a ``work_limit`` the result is
    repeatable, unless something else ends the solver. Raises InputError if the placement does not
    pass activations.
    """

    def __call__(
        self,
        problem: Problem,
        options: SolveOptions,
        *,
        incumbent: Schedule | None,
        lower_bound: float,
        on_solution: Callable[[Schedule], None] | None = None,
        on_bound: Callable[[float], None] | None = None,
    ) -> ExactResult: ...


def _load(module: str) -> Backend:
    def solve(problem: Problem, options: SolveOptions, **known: object) -> ExactResult:
        backend: Backend = import_module(f".{module}", __name__).solve
        return backend(problem, options, **known)  # type: ignore[arg-type]

    return solve


BACKENDS: Mapping[str, Backend] = {"cp-sat": _load("cp_sat"), "milp": _load("ilp")}
MOST_OPS = 12_000
"""The most ops that a solver accepts: the matrix of their order has one byte per pair of ops."""
