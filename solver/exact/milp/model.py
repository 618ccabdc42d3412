"""The integer program of the Zero Bubble paper (appendix), with PuLP and CBC.

It has a binary variable for the order of two ops of a rank, big-M constraints, and a memory
constraint at every F. Without the *packing* constraints its LP relaxation only proves the work;
with them it often proves the optimum.

CBC computes in floating point. A binary variable may be off by ``_INTEGER``, which lets a big-M
constraint slip by that times M, and any constraint may be off by ``_PRIMAL``. Along a path of N ops
this adds up to at most N (``_INTEGER`` M + ``_PRIMAL``), which is subtracted from its bound,
together with the precision of its output. If all costs are whole ticks, the rest is rounded up. The
bound is the one that CBC reports at its end; if it reports none, the known bound is returned.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pulp

from pipeloom.ir.model.ops import FloatArray
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.schedule import OPTIMIZED, Report, Schedule

from ...core.methods import Method
from ...core.options import SolveOptions
from ...core.schedule_cost import objective_cost
from ...core.stopping import TimeLimit
from ...core.tolerances import ROUNDING
from .. import ExactResult
from ..formulation import Formulation, Positions, to_positions, to_schedule
from ..integer_time import Ticks
from .cbc import Outcome, run_cbc

NODE = 50  # work of a node of the search tree per pair of ops, in simulated ops
_COST = 1e4  # the scaled horizon: CBC prints three decimals of a bound
_PRINTED = 1e-3
_INTEGER = 1e-9
_ABOVE = 1e-6  # relative slack above incumbent and horizon, as numbers are rounded in the file
_PRIMAL = 1e-8


def solve(
    problem: Problem,
    options: SolveOptions,
    *,
    incumbent: Schedule | None,
    lower_bound: float,
    on_solution: Callable[[Schedule], None] | None = None,
    on_bound: Callable[[float], None] | None = None,
) -> ExactResult:
    """See :class:`pipeloom.solver.exact.Backend`. Callbacks are only called at the end."""
    time = TimeLimit(options.time_limit)
    model = _Model.of(Formulation.of(problem), incumbent, lower_bound)
    node = NODE * len(model.formulation.ops) ** 2
    nodes = None if math.isinf(options.ops) else 1 + int(options.ops / node)
    outcome = run_cbc(
        model.lp,
        start=model.hint,
        seconds=max(time.left, 0.1),
        options=_options(nodes, 1 + options.seed % 2**30),
        should_stop=options.should_stop,
    )
    best = incumbent
    found = _schedule(model, outcome)
    if found is not None and (best is None or objective_cost(found) < objective_cost(best)):
        best = found
        if on_solution:
            on_solution(found)
    return ExactResult(best, _bound(model, outcome, best, lower_bound), outcome.complete)


def _options(nodes: int | None, seed: int) -> dict[str, float | str]:
    return {
        **({} if nodes is None else {"maxNodes": nodes}),
        "integerTolerance": _INTEGER,
        "primalTolerance": _PRIMAL,
        "randomSeed": seed,  # 0 would mean the time of day
        "randomCbcSeed": seed,
        "ratioGap": 0,
        "allowableGap": 0,
        "preprocess": "off",  # it finds little here, and the search then takes twice as long
    }


def _schedule(model: _Model, outcome: Outcome) -> Schedule | None:
    if not outcome.values:
        return None
    start = np.array([outcome.values[v.name] for v in model.start]) / model.scale
    first = {pair: outcome.values[v.name] > 0.5 for pair, v in model.before.items()}
    positions = Positions(start, model.formulation.ordered(first))
    report = Report(model.formulation.problem.objective, OPTIMIZED, method=Method.MILP)
    return to_schedule(model.formulation, positions, report, slack=1e-3 / model.scale)


def _bound(model: _Model, outcome: Outcome, best: Schedule | None, known: float) -> float:
    if outcome.infeasible and best is None:
        return math.inf
    # infeasible because of a tolerance: nothing is proven
    if outcome.infeasible or outcome.bound is None:
        return known
    path = len(model.formulation.ops)
    slip = path * (_INTEGER * model.horizon + _PRIMAL) + _PRINTED
    proven = (outcome.bound - slip) / model.scale
    if model.ticks.exact:
        proven = model.ticks.least(proven) / model.ticks.per_unit
    return min(max(known, proven), math.inf if best is None else objective_cost(best))


@dataclass
class _Model:
    """The MILP under construction, with times multiplied by ``scale``; CONSTRAINTS fill it in."""

    formulation: Formulation
    ticks: Ticks
    scale: float
    horizon: float
    known: float
    lp: pulp.LpProblem
    cost: pulp.LpVariable
    duration: FloatArray
    head: FloatArray
    latest: FloatArray
    start: list[pulp.LpVariable]
    before: dict[tuple[int, int], pulp.LpVariable] = field(default_factory=dict)
    hint: dict[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, formulation: Formulation, incumbent: Schedule | None, known: float) -> _Model:
        horizon = most = formulation.horizon * (1 + _ABOVE)
        if incumbent is not None:
            most = objective_cost(incumbent) * (1 + _ABOVE)
            horizon = min(horizon, formulation.horizon_below(most))
        scale = _COST / horizon if horizon > 0 else 1.0
        delays = [d.delay for d in formulation.dependencies]
        head, latest = formulation.heads * scale, (horizon - formulation.tails) * scale
        lp = pulp.LpProblem("schedule", pulp.LpMinimize)
        model = cls(
            formulation,
            Ticks.of([*formulation.duration.tolist(), *delays], formulation.horizon),
            scale,
            horizon * scale,
            known * scale,
            lp,
            lp.add_variable("cost", known * scale * (1 - ROUNDING), most * scale),
            formulation.duration * scale,
            head,
            latest,
            [lp.add_variable(f"s{i}", head[i], max(latest[i], head[i])) for i in range(len(head))],
        )
        lp += model.cost
        for constrain in CONSTRAINTS:
            constrain(model)
        if incumbent is not None:
            _hint(model, to_positions(formulation, incumbent), objective_cost(incumbent))
        return model

    def end(self, op: int) -> pulp.LpAffineExpression:
        return self.start[op] + self.duration[op]

    def runs_before(self, a: int, b: int) -> pulp.LpAffineExpression | int:
        """1 if op ``a`` runs before op ``b`` of the same rank, else 0."""
        precedes = self.formulation.precedes
        if precedes[a, b] or precedes[b, a]:
            return int(precedes[a, b])
        return self.before[a, b] + 0 if a < b else 1 - self.before[b, a]


def _order(model: _Model) -> None:
    for a, b in model.formulation.adjacent:
        model.lp += model.start[b] >= model.end(a)
    for a, b in model.formulation.open_pairs:
        binary = model.before[a, b] = model.lp.add_variable(f"b{a}_{b}", cat=pulp.LpBinary)
        _unless(model, b, a, model.duration[a], 1 - binary)
        _unless(model, a, b, model.duration[b], binary + 0)
    instant = {i for i, duration in enumerate(model.duration.tolist()) if duration == 0}
    for a, b, c in model.formulation.cycles(instant):
        model.lp += model.runs_before(a, b) + model.runs_before(b, c) + model.runs_before(c, a) <= 2


def _unless(
    model: _Model, late: int, early: int, gap: float, excuse: pulp.LpAffineExpression
) -> None:
    """Add: ``late`` starts ``gap`` after the start of ``early``, unless ``excuse`` is 1."""
    most = model.latest[early] + gap - model.head[late]
    if most > 0:
        model.lp += model.start[late] >= model.start[early] + gap - most * excuse


def _implications(model: _Model) -> None:
    for premise, conclusion in model.formulation.implications:
        model.lp += model.runs_before(*premise) <= model.runs_before(*conclusion)


def _dependencies(model: _Model) -> None:
    for d in model.formulation.dependencies:
        model.lp += model.start[d.after] >= model.end(d.before) + d.delay * model.scale


def _packing(model: _Model) -> None:
    period = model.formulation.problem.objective is Objective.PERIOD
    for i, first, others in model.formulation.packings:
        since = model.start[first] if period else 0
        earlier = [model.duration[j] * model.runs_before(j, i) for j in others]
        later = [model.duration[j] * model.runs_before(i, j) for j in others]
        model.lp += model.start[i] >= model.start[first] + pulp.lpSum(earlier)
        model.lp += model.cost + since >= model.end(i) + pulp.lpSum(later)


def _memory(model: _Model) -> None:
    costs = model.formulation.costs
    change = partial(model.formulation.memory_change, costs.m_b.tolist(), costs.m_w.tolist())
    for rule in model.formulation.memory_rules:
        unit = max(float(costs.m_b.max()), float(costs.limit[rule.rank])) / 100
        fixed = sum(map(change, (*rule.held, rule.op)))
        room = float(costs.limit[rule.rank]) * (1 + ROUNDING) - fixed
        terms = [change(i) / unit * model.runs_before(i, rule.op) for i in rule.open]
        if terms:
            model.lp += pulp.lpSum(terms) <= room / unit
        elif room < 0:
            model.lp += model.cost <= -1  # no schedule at all


def _earliest(model: _Model) -> None:
    for n, rule in enumerate(model.formulation.earliest):
        if not rule.after:
            model.lp += model.start[rule.op] <= 0
            continue
        reasons = []
        for op, delay in rule.after:
            reason = model.lp.add_variable(f"r{n}_{op}", cat=pulp.LpBinary)
            reasons.append(reason)
            gap = float(model.duration[op]) + delay * model.scale
            _unless(model, rule.op, op, gap, 1 - reason)
            most = model.latest[rule.op] - model.head[op] - gap
            model.lp += model.start[rule.op] <= model.start[op] + gap + max(most, 0) * (1 - reason)
        late = [model.runs_before(b, rule.op) for b in rule.unless]
        model.lp += pulp.lpSum(reasons) + pulp.lpSum(late) >= 1


CONSTRAINTS: tuple[Callable[[_Model], None], ...]
CONSTRAINTS = (_order, _implications, _dependencies, _packing, _memory, _earliest)


def _hint(model: _Model, positions: Positions, cost: float) -> None:
    """Give CBC the incumbent; it completes the binary variables of *earliest* by itself."""
    at = positions.places
    model.hint["cost"] = cost * model.scale
    for variable, start in zip(model.start, positions.start.tolist(), strict=True):
        model.hint[variable.name] = start * model.scale
    for (a, b), binary in model.before.items():
        model.hint[binary.name] = float(at[a] < at[b])
