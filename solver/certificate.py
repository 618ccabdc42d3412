"""Certificates of lower bounds: arguments that others can check without this solver.

:mod:`pipeloom.ir.verify.certificate` has the arguments, and checks them. Here the one of moments is
found by branch and bound over its counts: each leaf is a linear program, whose dual values are the
multipliers. Other bounds (memory over time, crossings, search) have no certificate yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import inf, isfinite
from typing import Any

from pipeloom.ir.formats import dump_schedule
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.verify.certificate import (
    LinearFacts,
    NotProvenError,
    Variable,
    inequalities,
    proven_by,
    ranges,
)
from pipeloom.ir.verify.schedule_facts import Facts, read_facts

from .core.stopping import NEVER, FirstOf, StoppingCriterion, TimeLimit
from .core.tolerances import CLOSED

MARGIN = CLOSED / 2
"""Relative: how far below the known bound the certified one is, room for rounding."""
NODES, ATTEMPTS = 5_000, 20
_WHOLE = 1e-6
_PENALTY = 1e3  # of an inequality that is not kept, so that each leaf has dual values
_MOST = 4.0  # of the cost, in units of the bound
_ORDER = "nzaqr"  # F's before the first B decide most
_Node = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Certified:
    """``lower_bound``: no schedule costs less, by ``argument``, a JSON object."""

    lower_bound: float
    argument: dict[str, Any]


def certify(
    schedule: Schedule, seconds: float = inf, should_stop: StoppingCriterion = NEVER
) -> Certified | None:
    """The best bound on the cost of all schedules of the instance that has a certificate, at most
    the one of the schedule's report. None where no argument speaks of the instance.
    """
    known = schedule.report.lower_bound if schedule.report else None
    if known is None or not isfinite(known):
        return None
    facts = read_facts(dump_schedule(schedule), "schedule")
    found = list(_simple(facts, known))
    best = max(found, key=lambda found: found.lower_bound, default=None)
    if best is None or best.lower_bound >= known * (1 - MARGIN):
        return best
    return _by_moments(facts, known, FirstOf(TimeLimit(seconds), should_stop)) or best


def _simple(facts: Facts, known: float) -> Iterator[Certified]:
    arguments: list[dict[str, Any]]
    arguments = [{"kind": "work", "rank": rank} for rank in range(facts.plan.ranks)]
    for argument in [*arguments, {"kind": "critical-path"}]:
        try:
            value = float(proven_by(facts, argument))
        except NotProvenError:
            continue
        yield Certified(min(value, known) * (1 - MARGIN), argument)


def _by_moments(facts: Facts, known: float, stop: StoppingCriterion) -> Certified | None:
    try:
        instance = LinearFacts.of(facts)
    except NotProvenError:
        return None
    value = known * (1 - MARGIN)
    for _ in range(ATTEMPTS):
        refutation = Refutation(instance, value)
        nodes = refutation.nodes(stop)
        if nodes is not None:
            return Certified(value, {"kind": "moments", "nodes": nodes})
        if stop() or refutation.solution is None:
            return None
        value *= refutation.solution * (1 - MARGIN)
    return None


class Refutation:
    """Refutes that a schedule costs less than ``value``: a tree of ranges of the counts.

    ``solution``: the cost of one that the inequalities allow, in units of ``value``.
    """

    def __init__(self, instance: LinearFacts, value: float) -> None:
        from ortools.linear_solver import pywraplp

        self.solution: float | None = None
        self._solver = pywraplp.Solver.CreateSolver("GLOP")
        cost: Variable = "C", 0
        self._variables = {cost: self._solver.NumVar(0.0, _MOST, "")}
        for i in range(len(instance.f)):
            for variable, (low, high) in ranges(instance, i).items():
                most = float(high) * (_MOST if variable[0] not in _ORDER else 1.0)
                self._variables[variable] = self._solver.NumVar(float(low), most, "")
        stages = range(len(instance.f) - 1, -1, -1)
        self._counts: list[Variable] = [(count, i) for count in _ORDER for i in stages]
        self._missed = self._solver.NumVar(0.0, self._solver.infinity(), "")
        self._rows = list(self._constraints(instance, value))
        objective = self._solver.Objective()
        objective.SetCoefficient(self._variables[cost], 1.0)
        objective.SetCoefficient(self._missed, _PENALTY)

    def _constraints(self, instance: LinearFacts, value: float) -> Iterator[tuple[str, int, Any]]:
        for i in range(len(instance.f)):
            for name, terms, least in inequalities(instance, i, Fraction(value)):
                row = self._solver.Constraint(float(least), self._solver.infinity())
                for variable, factor in terms.items():
                    row.SetCoefficient(self._variables[variable], float(factor))
                row.SetCoefficient(self._missed, 1.0)
                yield name, i, row

    def nodes(self, stop: StoppingCriterion = NEVER) -> list[_Node] | None:
        """The tree, each node before its branches; None where a leaf cannot be refuted in time."""
        found: list[_Node] = []
        open_ = [{v: (self._variables[v].lb(), self._variables[v].ub()) for v in self._counts}]
        while open_ and len(found) < NODES and not stop():
            node, branches = self._node(open_.pop())
            if node is None:
                return None
            found.append(node)
            open_ += branches
        return None if open_ else found

    def _node(self, box: dict[Variable, Any]) -> tuple[_Node | None, list[dict[Variable, Any]]]:
        for variable, (low, high) in box.items():
            self._variables[variable].SetBounds(low, high)
        if self._solver.Solve() != self._solver.OPTIMAL:
            return None, []
        cost = self._solver.Objective().Value()
        if cost > 1 + MARGIN / 10:
            return {"multipliers": list(self._multipliers())}, []
        for variable in self._counts:
            value = self._variables[variable].solution_value()
            if abs(value - round(value)) > _WHOLE:
                return _branch(variable, int(value), box)
        self.solution = cost
        return None, []

    def _multipliers(self) -> Iterator[dict[str, Any]]:
        for name, stage, row in self._rows:
            value = row.dual_value()
            if value > 0:
                yield {"inequality": name, "stage": stage, "by": value}


def _branch(
    variable: Variable, most: int, box: dict[Variable, Any]
) -> tuple[_Node, list[dict[Variable, Any]]]:
    (low, high), (count, stage) = box[variable], variable
    node = {"count": count, "stage": stage, "most": most}
    return node, [box | {variable: (most + 1, high)}, box | {variable: (low, most)}]
