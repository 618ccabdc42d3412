"""The portfolio behind ``optimize``: from a problem to its best schedule, with a certified bound."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import numpy as np

from pipeloom.ir.errors import InputError
from pipeloom.ir.ops import IntArray, Op, OpKind, pack
from pipeloom.ir.problem import Passing, Problem
from pipeloom.ir.schedule import Schedule

from .bounds import lower_bound
from .chain import Chain
from .construct import Constructor, settings
from .feasibility import check_feasible
from .incumbent import Incumbent, Listener

Rows = tuple[IntArray, ...]
SOLVERS = ("auto", "heuristic")


def optimize(
    problem: Problem,
    *,
    solver: str = "auto",
    time_limit: float = 60.0,
    seed: int = 0,
    progress: Listener | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Schedule:
    """The best schedule found within ``time_limit`` seconds, and how good it is known to be.

    Stops at once where cost and lower bound meet (``status`` optimal). A keyboard interrupt, or
    ``should_stop`` turning true, returns the best so far. ``progress`` is called on every
    improvement and about once a second. Raises InfeasibleError where no schedule keeps the memory
    limit, InputError for a placement or a solver that is not known.
    """
    _check(problem, solver)
    check_feasible(problem)
    best = Incumbent(problem, lower_bound(problem), time_limit, progress, should_stop)
    best.offer(one_at_a_time(problem), "one-at-a-time")
    with suppress(KeyboardInterrupt):  # the best so far is what the user asked for
        construct(best)
    return best.schedule(solver, seed)


def _check(problem: Problem, solver: str) -> None:
    if solver not in SOLVERS:
        raise InputError(f"solver: {solver}: expected {' or '.join(SOLVERS)}")
    if problem.placement.passing is not Passing.ACTIVATIONS:
        raise InputError(
            f"passing: {problem.placement.passing.value}: optimize plans activation passing alone; "
            "build a weight-passing family instead"
        )


def one_at_a_time(problem: Problem) -> Rows:
    """The schedule that needs the least memory: each microbatch alone, there and back."""
    owner = problem.placement.matrix(problem.stages, problem.microbatches)
    rows: list[list[Op]] = [[] for _ in range(problem.ranks)]
    for j in range(problem.microbatches):
        for s in range(problem.stages):
            rows[owner[s, j]].append(Op(OpKind.F, s, j))
        for s in reversed(range(problem.stages)):
            rows[owner[s, j]] += [Op(OpKind.B, s, j), Op(OpKind.W, s, j)]
    return tuple(map(pack, rows))


def construct(best: Incumbent) -> None:
    """Runs the list scheduler over its family of settings."""
    chain = Chain.of(best.problem)
    if chain is None:
        return
    constructor = Constructor(chain)
    lags = chain.lags(best.problem.objective)
    for setting in settings(chain, best.bound.value, lags):
        if best.over():
            return
        order = constructor.build(setting)
        if order is not None:
            best.offer(_by_rank(chain, order, best.problem.ranks), "search")


def _by_rank(chain: Chain, order: IntArray, ranks: int) -> Rows:
    rows = [np.empty(0, dtype=np.int64)] * ranks
    for stage, rank in enumerate(chain.ranks.tolist()):
        rows[rank] = order[stage]
    return tuple(rows)
