"""Checks of a small problem: no bound exceeds its optimum or the cost of a known schedule."""

from __future__ import annotations

import math
import traceback
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np

from pipeloom.ir import (
    InfeasibleError,
    Passing,
    Problem,
    Schedule,
    Status,
    dump_schedule,
    schedule_violations,
)
from pipeloom.ir.cost.overlap import overlap_saves
from pipeloom.ir.verify.certificate import CLOSED_FORMS
from pipeloom.ir.verify.certificates.least import NotProvenError
from pipeloom.ir.verify.schedule_facts import Facts, read_facts
from pipeloom.solver import Bound, Budget, certify, lower_bounds, objective_cost, solve
from pipeloom.solver.bounds.low_memory.crossings_search import crossings_bound
from pipeloom.solver.bounds.milp_relaxation import remat_relaxation
from pipeloom.solver.bounds.moments import branched_moments
from pipeloom.solver.core.linear_instance import LinearInstance
from pipeloom.solver.core.overlap_relaxation import least_times
from pipeloom.solver.core.relaxations import has_remat
from tests.support.oracle import Searched, searched
from tests.support.weight_oracle import least_makespan

from .instances import CELLS, problem_of

EQUAL = 1e-7
"""Relative tolerance for rounding in sums of times."""
CEILING = 1e-6
"""The oracle looks for schedules up to the found cost times 1 + CEILING."""
SECONDS = 5.0
"""Time limit of each bound that needs a search, and of each certificate."""


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a check.

    ``optimum``: from the oracle; None if undecided. ``bounds``: the number of bounds compared with
    the optimum, or with known schedules. ``wrong``: one line per fault.
    """

    wrong: tuple[str, ...]
    kind: str = ""
    seed: int = 0
    cost: float | None = None
    proven: bool = False
    optimum: float | None = None
    bounds: int = 0


def check(kind: str, seed: int, work_limit: float, nodes: int, *, every_bound: bool) -> Found:
    """Compare the bounds and the schedule of a random problem with the oracle; a crash is a fault.

    ``work_limit``: of the solve, in millions of simulated ops. ``every_bound``: for small problems,
    also check bounds that need a search, and certificates.
    """
    longer = float(np.random.default_rng(seed).uniform(1.0, 2.0))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # such as overflow
            problem = problem_of(kind, seed)
            small = problem.stages * problem.microbatches <= CELLS
            found = check_problem(
                problem, work_limit, nodes, longer if every_bound and small else None
            )
        return replace(found, kind=kind, seed=seed)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        wrong = f"{type(error).__name__}: {error} ({place.name}:{place.lineno})"
        return Found((wrong,), kind, seed)


def check_problem(problem: Problem, work_limit: float, nodes: int, longer: float | None) -> Found:
    """Check a problem.

    ``longer``: bounds that search below a ceiling are checked with the cost and with ``longer``
    times the cost as ceilings; None: they are not checked.
    """
    return _Check(problem, nodes, longer).found(work_limit)


class _Check:
    def __init__(self, problem: Problem, nodes: int, longer: float | None) -> None:
        self._problem, self._nodes, self._longer = problem, nodes, longer

    def found(self, work_limit: float) -> Found:
        try:
            values = {f"{b.name} {n}": b.value for n, b in enumerate(lower_bounds(self._problem))}
        except InfeasibleError:
            return Found(tuple(self._infeasible(work_limit)))
        schedule = solve(self._problem, work_limit=work_limit)
        cost = objective_cost(schedule)
        facts = read_facts(dump_schedule(schedule), "schedule")
        values["reported"] = schedule.known_report.known_bound
        if self._longer is not None:
            more = (self._searched(cost, ceiling) for ceiling in (cost, self._longer * cost))
            values |= dict(chain(*more, self._certified(schedule, facts)))
        least, complete = self._least(cost, max(values.values()))
        wrong = [
            f"bound {name} {value!r} above {'the optimum' if complete else 'a cost'} {least!r}"
            for name, value in values.items()
            if value > least * (1 + EQUAL)
        ]
        if complete and cost < least * (1 - EQUAL):
            wrong.append(f"cost {cost!r} below the optimum {least!r}")
        wrong += schedule_violations(facts)
        proven = schedule.known_report.status is Status.OPTIMAL
        optimum = least if complete else None
        return Found(tuple(wrong), cost=cost, proven=proven, optimum=optimum, bounds=len(values))

    def _infeasible(self, work_limit: float) -> Iterator[str]:
        """Check that neither the oracle nor the optimizer finds a schedule."""
        with suppress(InfeasibleError):
            solve(self._problem, work_limit=work_limit)
            yield "infeasible, but solved"
        if self._problem.placement.passing is Passing.ACTIVATIONS:
            least, _ = searched(self._problem, nodes=self._nodes)
            if least < math.inf:
                yield f"infeasible, but there is a schedule of cost {least!r}"

    def _least(self, cost: float, highest: float) -> tuple[float, bool]:
        """The lowest cost known, and whether it is proven to be the optimum.

        The oracle first checks whether anything costs less than the highest bound.
        """
        if self._problem.placement.passing is Passing.WEIGHTS:
            return least_makespan(self._problem), True
        least, complete = self._below(highest * (1 - EQUAL))
        if complete and highest < min(cost, least) * (1 - CEILING):
            found = self._below(cost * (1 + CEILING))
            return (found.least, True) if found.complete else (min(cost, found.least), False)
        return min(cost, least), complete

    def _below(self, ceiling: float) -> Searched:
        """The optimum below ``ceiling`` according to the oracle; infinite if there is none."""
        found = searched(self._problem, ceiling=ceiling, nodes=self._nodes)
        return found if found.least < ceiling else found._replace(least=math.inf)

    def _searched(self, cost: float, ceiling: float) -> Iterator[tuple[str, float]]:
        """Bounds that search below a ceiling."""
        problem, below = self._problem, f" below {ceiling!r}"
        weights = problem.placement.passing is Passing.WEIGHTS
        if problem.profile.unlike or weights or cost == 0:
            return
        found = searched_bound(problem, ceiling)
        if found is not None:
            yield found.name + below, found.value

    def _certified(self, schedule: Schedule, facts: Facts) -> Iterator[tuple[str, float]]:
        """The bound that each argument of a certificate proves, and that of the best one."""
        for kind, proven in CLOSED_FORMS.items():
            for at in range(max(facts.plan.ranks, facts.plan.stages)):
                with suppress(NotProvenError):
                    value = proven(facts, {"kind": kind, "rank": at, "stage": at})
                    yield f"certificate {kind} {at}", float(value)
        if not overlap_saves(self._problem):
            best = certify(schedule)
            if best is not None:
                yield f"certificate {best.argument['kind']}", best.lower_bound


def searched_bound(problem: Problem, ceiling: float, seconds: float = SECONDS) -> Bound | None:
    """The bound of such a problem that is found by a search below ``ceiling``, if there is one."""
    budget = Budget(seconds)
    if has_remat(problem):
        return remat_relaxation(problem, ceiling, budget)
    linear = LinearInstance.of(least_times(problem))
    if linear is None:
        return branched_moments(problem, 0.0, ceiling, budget)
    value = crossings_bound(linear, linear.lags(problem.objective), ceiling, budget)
    return Bound(value, "crossings-search", "")
