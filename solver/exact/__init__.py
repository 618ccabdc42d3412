"""Exact backends of one formulation: CP-SAT, and a MILP by CBC.

Beside them: all orders of ops as CP-SAT models (:mod:`.orders`).

Importing this imports neither ortools nor pulp; a backend's first use does.
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
    """``schedule``: the best found, timed; the incumbent where nothing better was; None if neither.

    ``lower_bound``: no valid schedule costs less; ``inf`` where none is valid at all.
    ``complete``: the solver came to its end, so that more time would be in vain.
    """

    schedule: Schedule | None
    lower_bound: float
    complete: bool = False


class Backend(Protocol):
    """Solves a problem to optimality, or as far as it gets.

    ``incumbent``: the best schedule known; only better ones are looked for. ``lower_bound``: one
    that is known to hold. ``on_solution`` is given every better schedule, timed, and ``on_bound``
    every better bound that comes up on the way, in the caller's thread; ``should_stop`` is asked
    several times per second. Ctrl-C ends the solver and raises KeyboardInterrupt. Of ``options``
    the limits, the seed and ``should_stop`` count: with a ``work_limit`` the same question has the
    same answer, unless one of the others ends it. Raises InputError for other passing than
    activations'.
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


BACKENDS: Mapping[str, Backend] = {"cp-sat": _load("cp_sat"), "milp": _load("milp.model")}
MOST_OPS = 12_000
"""Ops that a backend takes: the matrix of their order has a byte for each pair."""
