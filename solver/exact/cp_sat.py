"""The formulation solved by CP-SAT (ortools)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
from ortools.sat.python import cp_model

from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import OPTIMIZED, Report, Schedule

from ..core.methods import Method
from ..core.options import SolveOptions
from ..core.schedule_cost import objective_cost
from ..core.stopping import OPS_A_SECOND, TimeLimit
from . import ExactResult
from .cp_sat_model import CpSatModel
from .cp_sat_thread import CpSatThread
from .formulation import Formulation
from .solution_mapping import Positions, to_schedule

WORKERS = 2


def solve(
    problem: Problem,
    options: SolveOptions,
    *,
    incumbent: Schedule | None,
    lower_bound: float,
    on_solution: Callable[[Schedule], None] | None = None,
    on_bound: Callable[[float], None] | None = None,
) -> ExactResult:
    """See :class:`pipeloom.solver.exact.Backend`; where work is limited one thread searches."""
    time = TimeLimit(options.time_limit)
    model = CpSatModel.of(Formulation.of(problem), incumbent, lower_bound)
    best = incumbent
    with CpSatThread(
        model.cp,
        partial(_positions, model),
        max_time_in_seconds=max(time.left, 0.01),
        max_deterministic_time=options.ops / OPS_A_SECOND,
        num_workers=WORKERS if math.isinf(options.ops) else 1,
        random_seed=options.seed % 2**31,
    ) as search:
        while (news := search.next(options.should_stop)) is not None:
            if isinstance(news, float):
                if on_bound:
                    on_bound(_proven(model, news, best, lower_bound))
                continue
            report = Report(problem.objective, OPTIMIZED, method=Method.CP_SAT)
            found = to_schedule(model.formulation, news, report, model.slack)
            if found is not None and (best is None or objective_cost(found) < objective_cost(best)):
                best = found
                if on_solution:
                    on_solution(found)
    complete = search.status in (cp_model.OPTIMAL, cp_model.INFEASIBLE)
    return ExactResult(best, _bound(model, search, best, lower_bound), complete)


def _bound(
    model: CpSatModel, search: CpSatThread[Positions], best: Schedule | None, known: float
) -> float:
    if search.status == cp_model.INFEASIBLE and best is None:
        return math.inf
    return known if search.bound is None else _proven(model, search.bound, best, known)


def _proven(model: CpSatModel, bound: float, best: Schedule | None, known: float) -> float:
    """The bound that CP-SAT's ``bound`` in ticks proves, in the profile's unit."""
    proven = (bound - model.rounding) / model.ticks.per_unit
    return min(max(known, proven), math.inf if best is None else objective_cost(best))


def _positions(model: CpSatModel, solution: cp_model.CpSolverSolutionCallback) -> Positions:
    start = np.array([solution.value(v) for v in model.start], dtype=np.float64)
    first = {pair: bool(solution.value(v)) for pair, v in model.before.items()}
    return Positions(start / model.ticks.per_unit, model.formulation.ordered(first))
