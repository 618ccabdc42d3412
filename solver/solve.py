"""The portfolio behind ``optimize``: from a problem to its best schedule, with a certified bound."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import numpy as np

from pipeloom.ir.errors import InfeasibleError, InputError
from pipeloom.ir.ops import Op, OpKind, pack
from pipeloom.ir.problem import Passing, Problem
from pipeloom.ir.schedule import Schedule

from .bounds import lower_bound
from .chain import Chain
from .construct import Constructor, Rows, settings
from .families import FAMILIES
from .feasibility import check_feasible
from .incumbent import Incumbent, Listener
from .local_search import Annealer, Tried, Tuner

SOLVERS = ("auto", "heuristic")


class Round(Protocol):
    """Something that tries to improve the best schedule for a moment."""

    def round(self, best: Incumbent) -> None: ...


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
        search(best, np.random.default_rng(seed))
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


def search(best: Incumbent, rng: np.random.Generator) -> None:
    """Constructs, then improves settings and orders in turn until proven or told to stop."""
    rounds: list[Round] = [Annealer(best, rng)]
    chain = Chain.of(best.problem)
    if chain is None:
        build_families(best)
    else:
        constructor = Constructor(best.problem, chain)
        rounds.append(Tuner(constructor, construct(best, constructor), rng))
    while not best.over():
        for improve in rounds:
            improve.round(best)


def build_families(best: Incumbent) -> None:
    """Builds every family that has this placement and keeps the memory limit."""
    for family in FAMILIES.values():
        if best.over():
            return
        if family.supports(best.problem) is None:
            with suppress(InfeasibleError):  # this shape needs more memory; others may not
                schedule = family.build(best.problem)
                best.offer(schedule.order, family.name)


def construct(best: Incumbent, constructor: Constructor) -> list[Tried]:
    """Runs the list scheduler over its family of settings, as many as it takes."""
    tried = []
    lags = constructor.chain.lags(best.problem.objective)
    for setting in settings(constructor.chain, best.bound.value, lags):
        rows = constructor.build(setting)
        if rows is None:
            continue
        tried.append(Tried(constructor.cost(rows), setting))
        best.offer(rows, "search", tried[-1].cost)
        if best.over():
            break
    return tried
