"""Exact solvers for the order of ops: ``cp-sat``, a CP-SAT model, and ``milp``, an integer program.

Both solve the problem that :mod:`.instance` describes. Importing this package imports neither
ortools nor pulp; the first use of a solver does.
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
"""The type of an exact solver: it searches for the best schedule until it is proven or time is up.

Its arguments, in this order:

- the *incumbent*: the best schedule known, within its memory limits. Only better ones are searched;
- the *lower bound* on the cost that is known;
- the *options*, of which only the limits, the seed and ``should_stop`` are used; ``should_stop`` is
  called several times per second;
- *offer*: a function that receives every schedule found, with its timing;
- *raise to*: a function that receives every lower bound proven.

Both functions are called in the caller's thread. Returns whether the solver has finished, so that
more time would not help.

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
"""The maximum number of ops for a solver; the matrix of their order has a byte per pair of ops."""
