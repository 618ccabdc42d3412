"""The formulation solved by CP-SAT (OR-Tools): integer times, and one literal per open pair.

Rounding: times are rounded down to ticks. The start times of a valid schedule, rounded down as
well, satisfy every dependency and no-overlap constraint, because floor(x + y) >= floor(x) +
floor(y). Rounding lengthens a rank's span by less than one tick, and a makespan (from 0) not at
all. An op that starts at the end of another one may then start up to one tick later than that end,
or two with a delay in between (with ``Ticks.exact`` none of this happens). So the optimum of the
model minus one tick is a lower bound for the true times. The times of schedules are not taken from
the model: its orders are timed by the simulator.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from ortools.sat.python import cp_model

from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.schedule import OPTIMIZED, Report, Schedule

from ..core.methods import Method
from ..core.options import SolveOptions
from ..core.schedule_cost import objective_cost
from ..core.stopping import OPS_A_SECOND, TimeLimit
from ..core.tolerances import ROUNDING
from . import ExactResult
from .cp_sat_thread import CpSatThread
from .formulation import Formulation, Positions, to_positions, to_schedule
from .integer_time import Ticks


@dataclass
class CpSatModel:
    """The CP-SAT model under construction; CONSTRAINTS fill it in."""

    formulation: Formulation
    ticks: Ticks
    cost: cp_model.IntVar
    cp: cp_model.CpModel
    duration: list[int]
    start: list[cp_model.IntVar]
    before: dict[tuple[int, int], cp_model.IntVar] = field(default_factory=dict)

    @classmethod
    def of(cls, formulation: Formulation, incumbent: Schedule | None, known: float) -> CpSatModel:
        delays = [d.delay for d in formulation.dependencies]
        ticks = Ticks.of([*formulation.duration.tolist(), *delays], formulation.horizon)
        horizon, most = formulation.horizon, formulation.horizon
        if incumbent is not None:
            most = objective_cost(incumbent)
            horizon = formulation.horizon_below(most)
        low = ticks.least(known)
        high = max(ticks.most(most), low)
        cp = cp_model.CpModel()
        stop = math.ceil(horizon * ticks.per_unit) + 1
        model = cls(
            formulation,
            ticks,
            cp.new_int_var(low, high, "cost"),
            cp,
            [ticks.down(d) for d in formulation.duration.tolist()],
            [cp.new_int_var(0, stop, str(op)) for op in formulation.ops],
        )
        for constrain in CONSTRAINTS:
            constrain(model)
        cp.minimize(model.cost)
        if incumbent is not None:
            _hint(model, to_positions(formulation, incumbent))
        return model

    @property
    def rounding(self) -> int:
        """By how many ticks a true cost may be below that of the model."""
        period = self.formulation.problem.objective is Objective.PERIOD
        return int(period and not self.ticks.exact)

    @property
    def slack(self) -> float:
        """The largest error of times in a solution, in the profile's unit."""
        return 1e-9 if self.ticks.exact else 4 / self.ticks.per_unit

    def end(self, op: int) -> cp_model.LinearExpr:
        return self.start[op] + self.duration[op]

    def runs_before(self, a: int, b: int) -> cp_model.LiteralT:
        precedes = self.formulation.precedes
        if precedes[a, b] or precedes[b, a]:
            return bool(precedes[a, b])
        return self.before[a, b] if a < b else ~self.before[b, a]


def _order(model: CpSatModel) -> None:
    """Add a literal for each open pair.

    Start times make the orders transitive, except for ops of zero duration.
    """
    cp = model.cp
    for a, b in model.formulation.adjacent:
        cp.add(model.start[b] >= model.end(a))
    for a, b in model.formulation.open_pairs:
        literal = model.before[a, b] = cp.new_bool_var(f"{a}<{b}")
        cp.add(model.start[b] >= model.end(a)).only_enforce_if(literal)
        cp.add(model.start[a] >= model.end(b)).only_enforce_if(~literal)
    instant = {i for i, duration in enumerate(model.duration) if duration == 0}
    for a, b, c in model.formulation.cycles(instant):
        cp.add_bool_or(*(model.runs_before(j, i) for i, j in ((a, b), (b, c), (c, a))))


def _dependencies(model: CpSatModel) -> None:
    for d in model.formulation.dependencies:
        delay = model.ticks.down(d.delay)
        model.cp.add(model.start[d.after] >= model.end(d.before) + delay)


def _implications(model: CpSatModel) -> None:
    for premise, conclusion in model.formulation.implications:
        model.cp.add_implication(model.runs_before(*premise), model.runs_before(*conclusion))


def _packing(model: CpSatModel) -> None:
    period = model.formulation.problem.objective is Objective.PERIOD
    for i, first, others in model.formulation.packings:
        since = model.start[first] if period else 0
        earlier = [model.duration[j] * model.runs_before(j, i) for j in others]
        later = [model.duration[j] * model.runs_before(i, j) for j in others]
        model.cp.add(model.start[i] >= model.start[first] + cp_model.LinearExpr.sum(earlier))
        model.cp.add(model.cost + since >= model.end(i) + cp_model.LinearExpr.sum(later))


def _no_overlap(model: CpSatModel) -> None:
    cp = model.cp
    for ops in model.formulation.rank_ops:
        cp.add_no_overlap(
            [cp.new_fixed_size_interval_var(model.start[i], model.duration[i], "") for i in ops]
        )


def _memory(model: CpSatModel) -> None:
    costs = model.formulation.costs
    amounts = [*costs.m_b.tolist(), *costs.m_w.tolist()]
    bytes_ = Ticks.of(amounts, float(costs.m_b.sum()) * costs.owner.shape[1], bits=40)
    m_b, m_w = ([bytes_.down(m) for m in column.tolist()] for column in (costs.m_b, costs.m_w))
    change = partial(model.formulation.memory_change, m_b, m_w)
    for rule in model.formulation.memory_rules:
        limit = math.floor(costs.limit[rule.rank] * (1 + ROUNDING) * bytes_.per_unit)
        fixed = sum(map(change, (*rule.held, rule.op)))
        terms = [change(i) * model.runs_before(i, rule.op) for i in rule.open]
        if terms or fixed > limit:
            model.cp.add(sum(terms) + fixed <= limit)


def _spans(model: CpSatModel) -> None:
    formulation = model.formulation
    period = formulation.problem.objective is Objective.PERIOD
    for first, last in zip(formulation.first, formulation.last, strict=True):
        since = model.start[first] if period and first is not None else 0
        for op in last:
            model.cp.add(model.end(op) - since <= model.cost)


def _earliest(model: CpSatModel) -> None:
    inexact = not model.ticks.exact
    for rule in model.formulation.earliest:
        late = [model.runs_before(b, rule.op) for b in rule.unless]
        if not rule.after:
            model.cp.add(model.start[rule.op] == 0)
            continue
        reasons = []
        for op, delay in rule.after:
            reason = model.cp.new_bool_var("")
            reasons.append(reason)
            came = model.end(op) + model.ticks.down(delay)
            slack = inexact * (1 + (delay > 0))
            model.cp.add(model.start[rule.op] >= came).only_enforce_if(reason)
            model.cp.add(model.start[rule.op] <= came + slack).only_enforce_if(reason)
        model.cp.add_bool_or(*late, *reasons)


CONSTRAINTS: tuple[Callable[[CpSatModel], None], ...] = (
    *(_order, _implications, _dependencies, _no_overlap, _packing, _memory, _spans, _earliest),
)


def _hint(model: CpSatModel, positions: Positions) -> None:
    at = positions.places
    for i, start in enumerate(positions.start.tolist()):
        model.cp.add_hint(model.start[i], model.ticks.down(start))
    for (a, b), literal in model.before.items():
        model.cp.add_hint(literal, at[a] < at[b])


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
    """See :class:`pipeloom.solver.exact.Backend`; if work is limited, one thread searches."""
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
    """The lower bound, in the profile's unit, that CP-SAT's ``bound`` in ticks proves."""
    proven = (bound - model.rounding) / model.ticks.per_unit
    return min(max(known, proven), math.inf if best is None else objective_cost(best))


def _positions(model: CpSatModel, solution: cp_model.CpSolverSolutionCallback) -> Positions:
    start = np.array([solution.value(v) for v in model.start], dtype=np.float64)
    first = {pair: bool(solution.value(v)) for pair, v in model.before.items()}
    return Positions(start / model.ticks.per_unit, model.formulation.ordered(first))
