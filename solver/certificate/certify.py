"""The best bound that has a certificate, and its argument.

:mod:`pipeloom.ir.verify.certificate` defines the arguments and checks them. For closed forms the
checker finds the numbers itself. Arguments by inequalities are found here, by branch and bound over
counts (:class:`Refutation`): each leaf of the tree is a linear program, and its dual values are the
multipliers of the inequalities.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from math import inf, isfinite
from typing import Any, cast

from pipeloom.ir.errors import InfeasibleError, InputError
from pipeloom.ir.formats import dump_schedule
from pipeloom.ir.formats.certificate import Node
from pipeloom.ir.model.placement import Passing
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.verify.certificate import CLOSED_FORMS, check_tree
from pipeloom.ir.verify.certificates.linear import LinearFacts
from pipeloom.ir.verify.certificates.rows import COUNTS, NotProvenError, Variable
from pipeloom.ir.verify.schedule_facts import Facts, read_facts

from ..bounds import lower_bounds
from ..bounds.unlike import Figures, longest_pass
from ..core.relaxations import plain, unfused
from ..core.stopping import NEVER, FirstOf, StoppingCriterion, TimeLimit
from ..core.tolerances import CLOSED

MARGIN = CLOSED / 2
"""By how much, relative, the certified bound is below the known one, to allow for rounding."""
NODES = 1_000
# if the tree is too large, a root relaxation above this share of the bound is certified
NEAR = 0.998
_WHOLE = 1e-6
_PENALTIES = 1e3, 30.0, 3.0  # of violated inequalities, so that infeasible leaves have dual values
_MOST = 4.0  # largest cost, in units of the bound
_ORDER = "cnozapqr"
"""Branching order of the counts: recomputation and F's before the first B decide most."""
_Node = dict[str, Any]


def refuted(
    instance: LinearFacts, value: float, stop: StoppingCriterion = NEVER
) -> tuple[Refutation, list[_Node] | None]:
    """A refutation and its tree, if exact arithmetic accepts the tree.

    Smaller penalties lead to smaller multipliers, which amplify the rounding errors of inequalities
    less.
    """
    for penalty in _PENALTIES:
        refutation = Refutation(instance, value, penalty)
        nodes = refutation.nodes(stop)
        if nodes is None:
            break
        try:
            check_tree(instance, Fraction(value), cast("list[Node]", nodes))
        except NotProvenError:
            refutation.left = 1 - 10 * MARGIN
        else:
            return refutation, nodes
    return refutation, None


class Refutation:
    """Branch and bound to refute that a schedule costs less than ``value``.

    The tree branches on ranges of the counts. If it fails, ``left`` is a smaller cost to try next,
    in units of ``value``: the cost of a solution, or halfway to ``root``, the cost of the root
    relaxation.
    """

    def __init__(self, instance: LinearFacts, value: float, penalty: float = _PENALTIES[0]) -> None:
        from ortools.linear_solver import pywraplp

        self.left, self.root = 0.0, inf
        self._solver = pywraplp.Solver.CreateSolver("GLOP")
        cost: Variable = "C", 0
        self._variables = {cost: self._solver.NumVar(0.0, _MOST, "")}
        self._counts: list[Variable] = []
        for variable, (low, high) in instance.box().items():
            count = variable[0][0] in COUNTS
            most = float(high) * (1.0 if count else _MOST)
            self._variables[variable] = self._solver.NumVar(float(low), most, "")
            self._counts += [variable] if count and low < high else []
        self._counts.sort(key=lambda variable: (_place(variable), -variable[1]))
        self._missed = self._solver.NumVar(0.0, self._solver.infinity(), "")
        self._rows = list(self._constraints(instance, value))
        objective = self._solver.Objective()
        objective.SetCoefficient(self._variables[cost], 1.0)
        objective.SetCoefficient(self._missed, penalty)

    def _constraints(self, instance: LinearFacts, value: float) -> Iterator[tuple[str, int, Any]]:
        for name, i, (terms, least) in instance.rows(Fraction(value)):
            row = self._solver.Constraint(float(least), self._solver.infinity())
            for variable, factor in terms.items():
                row.SetCoefficient(self._variables[variable], float(factor))
            row.SetCoefficient(self._missed, 1.0)
            yield name, i, row

    def nodes(self, stop: StoppingCriterion = NEVER) -> list[_Node] | None:
        """The tree, each node before its branches; None if a leaf cannot be refuted in time."""
        found: list[_Node] = []
        open_ = [{v: (self._variables[v].lb(), self._variables[v].ub()) for v in self._counts}]
        while open_ and len(found) < NODES and not stop():
            node, branches = self._node(open_.pop())
            if node is None:
                return None
            found.append(node)
            open_ += branches
        if open_ and self.root < 1:
            self.left = self.root if self.root > NEAR else (1 + self.root) / 2
        return None if open_ else found

    def _node(self, box: dict[Variable, Any]) -> tuple[_Node | None, list[dict[Variable, Any]]]:
        for variable, (low, high) in box.items():
            self._variables[variable].SetBounds(low, high)
        if self._solver.Solve() != self._solver.OPTIMAL:
            return None, []
        cost = self._solver.Objective().Value()
        self.root = min(self.root, cost)
        if cost > 1 + MARGIN / 10:
            return {"multipliers": list(self._multipliers())}, []
        for variable in self._counts:
            value = self._variables[variable].solution_value()
            if abs(value - round(value)) > _WHOLE:
                return _branch(variable, int(value), box)
        self.left = cost
        return None, []

    def _multipliers(self) -> Iterator[dict[str, Any]]:
        for name, stage, row in self._rows:
            value = row.dual_value()
            if value > 0:
                yield {"inequality": name, "stage": stage, "by": value}


def _place(variable: Variable) -> int:
    return _ORDER.index(variable[0][0])


def _branch(
    variable: Variable, most: int, box: dict[Variable, Any]
) -> tuple[_Node, list[dict[Variable, Any]]]:
    (low, high), (count, stage) = box[variable], variable
    node = {"count": count, "stage": stage, "most": most}
    return node, [box | {variable: (most + 1, high)}, box | {variable: (low, most)}]


ATTEMPTS = 20
ENOUGH = 1 - 0.9 * CLOSED  # share of the bound that counts as the whole
CLOSE = 3e-4  # the bisection ends at this distance, relative to the bound


@dataclass(frozen=True, slots=True)
class Certified:
    """No schedule costs less than ``lower_bound``, by ``argument``, a JSON object."""

    lower_bound: float
    argument: dict[str, Any]


def certify(
    schedule: Schedule, seconds: float = inf, should_stop: StoppingCriterion = NEVER
) -> Certified | None:
    """The best certified bound on the cost of all schedules of the instance.

    It is at most the bound in the schedule's report. None if no argument applies to the instance.
    """
    known = schedule.report.lower_bound if schedule.report else None
    if known is None or not isfinite(known):
        return None
    facts = read_facts(dump_schedule(schedule), "schedule")
    simple = simple_arguments(facts.plan.ranks)
    best = max(_proven(facts, simple, known), key=_value, default=None)
    if best is None:
        return None
    if best.lower_bound < known * ENOUGH:
        more = closed_forms(schedule.problem, best.lower_bound)
        best = max([best, *_proven(facts, more, known)], key=_value)
    stop = FirstOf(TimeLimit(seconds), should_stop)
    if best.lower_bound < known * ENOUGH:
        with suppress(NotProvenError):
            best = max(best, _by_moments(facts, known, stop) or best, key=_value)
    return best


def _value(found: Certified) -> float:
    return found.lower_bound


def _proven(facts: Facts, arguments: Iterable[dict[str, Any]], known: float) -> Iterator[Certified]:
    for argument in arguments:
        with suppress(NotProvenError):
            value = float(CLOSED_FORMS[argument["kind"]](facts, argument))
            yield Certified(min(value, known) * (1 - MARGIN), argument)


def _by_moments(facts: Facts, known: float, stop: StoppingCriterion) -> Certified | None:
    instance = LinearFacts.of(facts)
    best: Certified | None = None
    value = failed = known * (1 - MARGIN)
    for _ in range(ATTEMPTS):
        refutation, nodes = refuted(instance, value, stop)
        if nodes is not None:
            best = _of_moments(value, nodes)
        else:
            failed = value
        if best is not None:  # bisect between the best and what could not be refuted
            if stop() or failed - best.lower_bound <= CLOSE * known:
                break
            value = (best.lower_bound + failed) / 2
            continue
        value *= (refutation.root if stop() else refutation.left) * (1 - MARGIN)
        if stop():  # refuting by the root relaxation takes almost no time
            nodes = refuted(instance, value)[1] if 0 < value < known else None
            return _of_moments(value, nodes) if nodes else None
        if value <= 0:
            return None
    return best


def _of_moments(value: float, nodes: list[dict[str, Any]]) -> Certified:
    return Certified(value, {"kind": "moments", "nodes": nodes})


_Argument = dict[str, Any]
_OF_RANK, _OF_STAGE = ("memory-time", "head-tail"), ("slots", "crossings")


def simple_arguments(ranks: int) -> list[_Argument]:
    """The arguments for every problem, which take almost no time."""
    return [*({"kind": "work", "rank": rank} for rank in range(ranks)), {"kind": "critical-path"}]


def closed_forms(problem: Problem, least: float) -> Iterator[_Argument]:
    """The arguments of closed-form bounds above ``least``, that of the best bound first."""
    with suppress(InfeasibleError, InputError):
        bounds = [bound for bound in lower_bounds(problem) if bound.value > least]
        for bound in sorted(bounds, key=lambda bound: -bound.value):
            if bound.name == "arrivals":
                yield {"kind": "arrivals"}
            elif bound.name in _OF_STAGE and bound.rank is not None:
                stage = problem.placement.stages_of(bound.rank)[0]
                yield {"kind": bound.name, "stage": stage}
            elif problem.profile.unlike and bound.name in _OF_RANK and bound.rank is not None:
                yield {"kind": bound.name, "rank": bound.rank}
            elif problem.profile.unlike and bound.name == "through":
                yield from _through(problem)


def _through(problem: Problem) -> Iterator[_Argument]:
    if problem.placement.passing is Passing.ACTIVATIONS:
        found = longest_pass(Figures.of(plain(unfused(problem))))
        chosen = {"microbatches": list(found.microbatches)}
        yield {"kind": "through", "stage": found.stage, "by": found.by} | chosen
