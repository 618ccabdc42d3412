"""Rules that must hold of any instance: each breach is one line, a crash too."""

from __future__ import annotations

import json
import math
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pipeloom.ir import (
    InfeasibleError,
    InputError,
    Problem,
    Schedule,
    Status,
    dump_schedule,
    parse_schedule,
    verify_schedule,
)
from pipeloom.solver import (
    BACKENDS,
    FAMILIES,
    SolveOptions,
    build_family,
    lower_bound,
    objective_cost,
    solve,
)
from tests.property.small_exact.checks import check_problem
from tests.support.oracle import exhaustive_optimum

from .instances import Instance

EQUAL = 1e-9
"""Relative: what rounding may add to a sum of times."""
CLOSED = 1e-6
"""Relative: how near to its bound an optimal cost is."""
BEATEN = 0.01
"""Relative: how much better than what ``optimize`` finds in little time a family may be."""
EXACT_SECONDS = 60.0
NODES, BEYOND = 10**9, 1.3
"""Of a tiny instance: the oracle looks at all; how far above a cost bounds are searched, too."""
TWICE = 7
"""Of the seeds, how many are optimized twice: each seventh."""


@dataclass(slots=True)
class Outcome:
    """Results of an instance's checks, and the faults found.

    ``status``: optimal, feasible, infeasible, or crash. ``gap``: of the optimized schedule.
    ``schedules``: how many were verified. ``optimum``: the oracle's, where it was asked.
    """

    status: str = "crash"
    gap: float = 0.0
    bound_name: str = ""
    schedules: int = 0
    optimum: float | None = None
    faults: list[str] = field(default_factory=list)


def check(instance: Instance, work_limit: float) -> Outcome:
    """Optimizes, builds all families, verifies all files; a tiny instance meets the oracle too.

    ``work_limit``: of each solve, in millions of simulated ops.
    """
    outcome = Outcome()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # overflow and its like
            for fault in _faults(instance, work_limit, outcome):
                outcome.faults.append(fault)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        outcome.status = "crash"
        outcome.faults.append(f"{type(error).__name__}: {error} ({place.name}:{place.lineno})")
    return outcome


def _faults(instance: Instance, work_limit: float, outcome: Outcome) -> Iterator[str]:
    problem = instance.problem
    optimum = exhaustive_optimum(problem) if instance.tiny else None
    outcome.optimum = optimum
    if not instance.feasible:
        outcome.status = "infeasible"
        yield from _refused(problem, work_limit)
        yield from _families(problem, 0.0, math.inf, outcome)
        if optimum is not None:
            yield from _exactly(problem, optimum)
        return
    schedule = solve(problem, work_limit=work_limit)
    yield from _valid(schedule, outcome)
    bound, cost = schedule.known_report.known_bound, objective_cost(schedule)
    outcome.status = schedule.known_report.status.value
    outcome.gap = (cost - bound) / cost if cost > 0 else 0.0
    outcome.bound_name = schedule.known_report.bound or ""
    yield from _families(problem, bound, cost, outcome)
    if instance.seed % TWICE == 0:
        yield from _same(schedule, solve(problem, work_limit=work_limit))
    if optimum is not None:
        yield from check_problem(problem, work_limit, NODES, BEYOND).wrong
        yield from _exactly(problem, optimum)


def _refused(problem: Problem, work_limit: float) -> Iterator[str]:
    """InfeasibleError alone, and its limit is one that serves the rank it names."""
    calls: dict[str, Callable[[], Any]] = {
        "lower_bound": lambda: lower_bound(problem),
        "optimize": lambda: solve(problem, work_limit=work_limit),
    }
    for name, call in calls.items():
        try:
            call()
        except InfeasibleError as error:
            if error.rank is None or error.smallest is None:
                yield f"{name}: infeasible, but no rank and limit are named"
                continue
            least = problem.profile.stages[error.rank].m_b
            if not problem.memory_limit[error.rank] < error.smallest == least:
                yield f"{name}: rank {error.rank} needs {least}, but {error.smallest} is said"
            continue
        yield f"{name}: infeasible, but no InfeasibleError"


def _families(problem: Problem, bound: float, best: float, outcome: Outcome) -> Iterator[str]:
    """Each family that can be built is valid and costs no less than its own instance's bound.

    For those with one stage a rank the instance is ``problem``: ``bound`` holds for them, and they
    are not much better than the ``best`` that was found.
    """
    for name in FAMILIES:
        try:
            schedule = build_family(
                name, problem.profile, problem.microbatches, objective=problem.objective
            )
        except (InfeasibleError, InputError):
            continue
        yield from (f"{name}: {fault}" for fault in _valid(schedule, outcome))
        cost, least = objective_cost(schedule), lower_bound(schedule.problem).value
        if schedule.problem == problem:
            least = max(least, bound)
            if cost < best * (1 - BEATEN):
                yield f"{name}: cost {cost!r}, but optimize found {best!r} at best"
        if cost < least * (1 - EQUAL):
            yield f"{name}: cost {cost!r} below the bound {least!r}"


def _valid(schedule: Schedule, outcome: Outcome) -> Iterator[str]:
    """The schedule's file passes the verifier, and our reader takes it."""
    outcome.schedules += 1
    document = json.loads(json.dumps(dump_schedule(schedule), allow_nan=False))
    yield from verify_schedule(document)
    again = parse_schedule(document, "schedule")
    if [row.tolist() for row in again.order] != [row.tolist() for row in schedule.order]:
        yield "read back, the order is another"
    report, cost = schedule.report, objective_cost(schedule)
    if report is None or report.lower_bound is None:
        return
    if cost < report.lower_bound * (1 - EQUAL):
        yield f"cost {cost!r} below the bound {report.lower_bound!r}"
    met = cost - report.lower_bound <= CLOSED * cost
    if met != (report.status is Status.OPTIMAL):
        yield f"{report.status.value}: cost {cost!r}, bound {report.lower_bound!r}"


def _same(schedule: Schedule, again: Schedule) -> Iterator[str]:
    """A work limit makes solves repeatable."""
    if [row.tolist() for row in again.order] != [row.tolist() for row in schedule.order]:
        costs = f"{objective_cost(again)!r} for {objective_cost(schedule)!r}"
        yield f"solved again, the order is another, of cost {costs}"
    bound, before = (each.known_report.known_bound for each in (again, schedule))
    if bound != before:
        yield f"solved again, the bound is {bound!r} instead of {before!r}"


def _exactly(problem: Problem, optimum: float) -> Iterator[str]:
    """Each exact backend, from nothing, finds and proves the optimum, or that there is none."""
    for name, backend in BACKENDS.items():
        found = backend(
            problem,
            SolveOptions(time_limit=EXACT_SECONDS, seed=problem.ranks),
            incumbent=None,
            lower_bound=0.0,
        )
        if math.isinf(optimum):
            if found.schedule is not None or found.lower_bound != math.inf:
                yield f"{name}: {found.lower_bound!r}, expected a proof that there is no schedule"
            continue
        if found.schedule is None:
            yield f"{name}: no schedule"
            continue
        cost = objective_cost(found.schedule)
        if not math.isclose(cost, optimum, rel_tol=CLOSED):
            yield f"{name}: cost {cost!r}, the optimum is {optimum!r}"
        if not optimum * (1 - CLOSED) <= found.lower_bound <= optimum * (1 + EQUAL):
            yield f"{name}: bound {found.lower_bound!r}, the optimum is {optimum!r}"
