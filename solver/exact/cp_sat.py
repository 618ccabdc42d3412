"""The exact solver ``cp-sat``: all orders of a problem by CP-SAT, minimizing the cost."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from ortools.sat.python import cp_model

from pipeloom.ir.model.ops import FloatArray
from pipeloom.ir.model.schedule import Schedule

from ..core.options import MOST_SEEDS, Order, SolveOptions
from ..core.schedule_cost import objective_cost
from ..core.stopping import OPS_A_SECOND, TimeLimit
from ..core.tolerances import ROUNDING
from .cp_sat_thread import CpSatThread
from .first_starts import earliest, starts_of, to_schedule
from .instance import Instance, all_positions
from .model import OrderModel

WORKERS = 2


def solve(
    incumbent: Schedule,
    lower_bound: float,
    options: SolveOptions,
    offer: Callable[[Schedule], object],
    raise_to: Callable[[float], object],
) -> bool:
    """Search all orders with CP-SAT, in WORKERS threads, or in one thread if there is a work limit.

    Arguments and result are those of :data:`pipeloom.solver.exact.Backend`.
    """
    time, problem = TimeLimit(options.time_limit), incumbent.problem
    instance = all_positions(problem)
    model = exact_model(instance, incumbent, lower_bound)
    slack = ROUNDING if model.ticks.exact else 4 / model.ticks.per_unit

    def read(solution: cp_model.CpSolverSolutionCallback) -> tuple[Order, FloatArray]:
        start = np.array([solution.value(start) for start in model.starts], dtype=np.float64)
        return model.order(solution), start / model.ticks.per_unit

    with CpSatThread(
        model.cp,
        read,
        max_time_in_seconds=max(time.left, 0.01),
        max_deterministic_time=options.ops / OPS_A_SECOND,
        num_workers=WORKERS if math.isinf(options.ops) else 1,
        random_seed=options.seed % MOST_SEEDS,
    ) as search:
        while (news := search.next(options.should_stop)) is not None:
            if isinstance(news, float):
                raise_to(model.proves(news))
                continue
            order, start = news
            found = to_schedule(Schedule(problem, order), instance, start, slack)
            if found is not None:
                offer(found)
    if search.bound is not None:
        raise_to(model.proves(search.bound))
    return search.status in {cp_model.OPTIMAL, cp_model.INFEASIBLE}


def exact_model(instance: Instance, incumbent: Schedule, lower_bound: float) -> OrderModel:
    """The CP-SAT model of all orders of ``instance``, with the constraints of :mod:`.first_starts`.

    ``incumbent``: the best schedule known; its cost is the maximum cost in the model, and its
    starts are the hint. ``lower_bound``: a known lower bound on the cost, which is the minimum cost
    in the model.
    """
    most, hint = objective_cost(incumbent), starts_of(instance, incumbent)
    model = OrderModel(instance, lower_bound, most, minimize=True, hint=hint)
    cp, inexact = model.cp, not model.ticks.exact
    for rule in earliest(incumbent.problem, instance) if model.starts else ():
        start = model.starts[rule.op]
        if not rule.after:
            cp.add(start == 0)
            continue
        reasons = [cp.new_bool_var("") for _ in rule.after]
        for reason, (op, delay) in zip(reasons, rule.after, strict=True):
            came = model.starts[op] + model.takes[op] + model.ticks.down(delay)
            cp.add(start >= came).only_enforce_if(reason)
            cp.add(start <= came + inexact * (1 + (delay > 0))).only_enforce_if(reason)
        cp.add_bool_or(*(model.before(b, rule.op) for b in rule.unless), *reasons)
    return model
