"""The portfolio behind ``optimize``: from a problem to its best schedule, with a certified bound."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Protocol

import numpy as np

from pipeloom.ir.errors import InfeasibleError, InputError
from pipeloom.ir.ops import MICROBATCH_SHIFT, STAGE_SHIFT, OpKind
from pipeloom.ir.problem import Passing, Problem
from pipeloom.ir.schedule import Schedule

from .bounds import Bound, lower_bounds
from .chain import ROUNDING, Chain
from .construct import Constructor, Rows, settings
from .exact import BACKENDS
from .families import FAMILIES
from .incumbent import Incumbent, Listener
from .lanes import lanes
from .local_search import Annealer, Tried, Tuner
from .relaxation import relaxation
from .warm_start import warm_starts

RELAXATION_SECONDS = 3.0
LANES_SECONDS = 3.0
EXACT_OPS = 400
"""Up to how many ops ``auto`` tries an exact solver."""
EXACT_AFTER = 2
"""Rounds of local search before it does."""


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
    best = Incumbent(problem, next(lower_bounds(problem)), time_limit, progress, should_stop)
    best.offer(one_at_a_time(problem), "one-at-a-time")
    with suppress(KeyboardInterrupt):  # the best so far is what the user asked for
        _PORTFOLIOS.get(solver, partial(exactly, solver=solver))(best, seed)
    return best.schedule(solver, seed)


def _check(problem: Problem, solver: str) -> None:
    known = [*_PORTFOLIOS, *BACKENDS]
    if solver not in known:
        raise InputError(f"solver: expected {' or '.join(known)}, got {solver!r}")
    if problem.placement.passing is not Passing.ACTIVATIONS:
        raise InputError(
            f"passing: {problem.placement.passing.value}: optimize plans activation passing alone; "
            "build a weight-passing family instead"
        )


def one_at_a_time(problem: Problem) -> Rows:
    """The schedule that needs the least memory: each microbatch alone, there and back."""
    owner = problem.placement.matrix(problem.stages, problem.microbatches)
    stages = np.arange(problem.stages)
    back = np.repeat(stages[::-1], 2)
    stage = np.append(stages, back)
    kind = np.append(np.full(problem.stages, OpKind.F), np.tile([OpKind.B, OpKind.W], len(stages)))
    ops = (stage << STAGE_SHIFT | kind) + (
        np.arange(problem.microbatches)[:, None] << MICROBATCH_SHIFT
    )
    ranks = owner[stage].T.ravel()
    counts = np.bincount(ranks, minlength=problem.ranks)
    return tuple(np.split(ops.ravel()[np.argsort(ranks, kind="stable")], counts.cumsum()[:-1]))


def automatically(best: Incumbent, seed: int) -> None:
    """Constructs and improves; small problems go to an exact solver for half of the time left."""
    rounds = start(best, seed)
    if 3 * best.problem.stages * best.problem.microbatches <= EXACT_OPS:
        improve(best, rounds, EXACT_AFTER)
        solve_exactly(best, "cp-sat", best.seconds_left / 2, seed)
    improve(best, rounds)


def heuristically(best: Incumbent, seed: int) -> None:
    """Constructs, then improves."""
    improve(best, start(best, seed))


def exactly(best: Incumbent, seed: int, solver: str) -> None:
    """Constructs, then leaves all to an exact solver."""
    start(best, seed)
    solve_exactly(best, solver, best.seconds_left, seed)


_PORTFOLIOS: Mapping[str, Callable[[Incumbent, int], None]] = {
    "auto": automatically,
    "heuristic": heuristically,
}


def start(best: Incumbent, seed: int) -> list[Round]:
    """Builds the first schedules; returns what can improve them."""
    rng = np.random.default_rng(seed)
    chain = Chain.of(best.problem)
    if chain is None:
        bound(best)
        build_families(best)
        return [Annealer(best.problem, rng)]
    for order in warm_starts(best.problem, chain):
        best.offer(order, "warm-start")
    bound(best)
    constructor = Constructor(best.problem, chain)
    tried = construct(best, constructor)
    tighten(best, chain)
    return [Annealer(best.problem, rng), Tuner(constructor, tried, rng)]


def bound(best: Incumbent) -> None:
    """Takes the bounds in closed form, one by one until one meets the best schedule."""
    for found in lower_bounds(best.problem):
        best.raise_bound(found)
        if best.over():
            return


def tighten(best: Incumbent, chain: Chain) -> None:
    """Looks for a better bound where the first schedules have not met the one there is."""
    if not best.over():
        seconds = min(RELAXATION_SECONDS, best.seconds_left / 4)
        value = relaxation(chain, best.problem.objective, best.cost, seconds)
        words = "what must happen between four moments on each stage, as a small MILP"
        best.raise_bound(Bound(value, "relaxation", words))
    if not best.over():
        lags = chain.lags(best.problem.objective)
        value = lanes(chain, lags, best.cost, min(LANES_SECONDS, best.seconds_left / 4))
        words = "memory holds few microbatches, and each on its way up meets all others"
        best.raise_bound(Bound(value * (1 - ROUNDING), "lanes", words))


def improve(best: Incumbent, rounds: Sequence[Round], times: int | None = None) -> None:
    """Goes round ``times`` times, or until it is over: proven, out of time or told to stop."""
    for _ in count() if times is None else range(times):
        for each in rounds:
            if best.over():
                return
            each.round(best)


def solve_exactly(best: Incumbent, solver: str, time_limit: float, seed: int) -> None:
    """Gives the best schedule to an exact solver and takes what it finds and proves."""
    if best.over():
        return

    def take(found: Schedule) -> None:
        best.offer(found.order, "ilp")

    result = BACKENDS[solver](
        best.problem,
        incumbent=best.schedule(solver, seed),
        lower_bound=best.bound.value,
        time_limit=time_limit,
        seed=seed,
        on_solution=take,
        should_stop=best.over,
    )
    if result.schedule is not None:
        take(result.schedule)
    best.raise_bound(Bound(result.lower_bound, solver, f"{solver} searched all orders"))


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
    """Runs the constructors over their families of settings, as many as it takes."""
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
