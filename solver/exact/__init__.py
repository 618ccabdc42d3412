"""Exact solvers of orders of ops, described by :mod:`.instance`: one CP-SAT model and one ILP.

Importing this package imports neither ortools nor pulp; the first use of a solver does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, TypeAlias

from pipeloom.ir.model.schedule import Schedule

from ..core.options import SolveOptions

Backend: TypeAlias = Callable[
    [Schedule, float, SolveOptions, Callable[[Schedule], object], Callable[[float], object]], bool
]
"""Solves the problem of a schedule to optimality, or as far as the limits allow.

Arguments: the *incumbent*, the best schedule known, within its memory limits, as only better ones
are searched; the *lower bound* known to be valid; the *options*, of which only the limits, the seed
and ``should_stop`` are used, which is called several times per second; *offer*, which receives
every schedule found, timed; and *raise to*, which receives every bound proven. Both are called in
the caller's thread. Returns whether the solver has finished, so that more time would not help.

Ctrl-C ends the solver and raises KeyboardInterrupt. With a ``work_limit`` the result is repeatable,
unless something else ends the solver. Raises InputError if the placement does not pass activations.
"""


def _load(module: str) -> Backend:
    def solve(*known: Any) -> bool:
        backend: Backend = import_module(f".{module}", __name__).solve
        return backend(*known)

    return solve


BACKENDS: Mapping[str, Backend] = {"cp-sat": _load("cp_sat"), "milp": _load("ilp")}
MOST_OPS = 12_000
"""The most ops that a solver accepts: the matrix of their order has one byte per pair of ops."""
