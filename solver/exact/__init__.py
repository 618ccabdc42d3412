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
"""An exact solver: it searches for the best schedule until that is proven or a limit is used up.

Its arguments, in this order:

- the *incumbent*: the best schedule known, which fits in memory; only better ones are searched;
- the *lower bound*: the highest known lower bound on the cost;
- the *options*, of which only the limits, the seed and ``should_stop`` are used; ``should_stop`` is
  called several times per second;
- *offer*: a function that is called with every schedule found, including its timing;
- *raise to*: a function that is called with every lower bound proven.

The last two are called in the caller's thread. Returns whether the solver has finished; if so, more
time would not help.

Ctrl-C ends the solver and raises KeyboardInterrupt. With a ``work_limit`` the result is repeatable,
unless the time limit or ``should_stop`` ends the solver. Raises InputError if the placement does
not pass activations.
"""


def _load(module: str) -> Backend:
    def solve(*known: Any) -> bool:
        backend: Backend = import_module(f".{module}", __name__).solve
        return backend(*known)

    return solve


BACKENDS: Mapping[str, Backend] = {"cp-sat": _load("cp_sat"), "milp": _load("ilp")}
MOST_OPS = 12_000
"""The maximum number of ops for an exact solver, whose memory use is quadratic in that number."""
