"""Certificates of lower bounds: arguments that others can check without this solver.

Bounds by work, by the way of one microbatch and by the moments of each stage
(:mod:`.bounds.milp_relaxation`) have one: the last by branch and bound, a linear program in each
leaf, whose dual values refute it. Others (memory over time, crossings, search) have none yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from typing import Any

from pipeloom.ir.cost.overlap import overlap_saves
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule, Updates

from .bounds.general import critical_path, work
from .bounds.milp_relaxation import StageMoments, add_moments, relaxation
from .core.linear_instance import LinearInstance
from .core.relaxations import has_remat
from .core.stopping import NEVER, Budget, FirstOf, StoppingCriterion, TimeLimit
from .core.tolerances import CLOSED

MARGIN = CLOSED / 2
"""Relative: how far below the known bound the certified one is, room for rounding."""
NODES = 5_000
_WHOLE = 1e-6
_PENALTY = 1e3  # of one inequality that is not kept
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
    the one of the schedule's report. None where no argument speaks of the instance: recomputation,
    offload, overlap, microbatches that are unlike and weight stashing.
    """
    problem = schedule.problem
    known = schedule.report.lower_bound if schedule.report else None
    unlike = problem.profile.unlike or schedule.updates is not Updates.ITERATION
    if known is None or unlike or has_remat(problem) or overlap_saves(problem):
        return None
    stop = FirstOf(TimeLimit(seconds), should_stop)
    found = list(_certified(problem, known, seconds / 3, stop))
    return max(found, key=lambda found: found.lower_bound)


def _certified(
    problem: Problem, known: float, seconds: float, stop: StoppingCriterion
) -> Iterator[Certified]:
    busiest = work(problem)
    assert busiest.rank is not None
    yield Certified(
        min(busiest.value, known) * (1 - MARGIN), {"kind": "work", "rank": busiest.rank}
    )
    path = critical_path(problem).value
    yield Certified(min(path, known) * (1 - MARGIN), {"kind": "critical-path"})
    linear = LinearInstance.of(problem)
    if linear is None or max(busiest.value, path) >= known * (1 - MARGIN):
        return
    relaxed = relaxation(linear, problem.objective, known, Budget(seconds))  # has its own margin
    value = min(known * (1 - MARGIN), relaxed)
    nodes = Refutation(linear, problem, value).nodes(stop) if value > 0 else None
    if nodes is not None:
        yield Certified(value, {"kind": "moments", "nodes": nodes})


class Refutation:
    """Refutes that a schedule costs less than ``value``: a tree of ranges of the counts."""

    def __init__(self, linear: LinearInstance, problem: Problem, value: float) -> None:
        from ortools.linear_solver import pywraplp

        self._solver = pywraplp.Solver.CreateSolver("GLOP")
        self._cost, stages = add_moments(self._solver, linear, problem.objective, value)
        self._cost.SetUb(self._solver.infinity())
        self._counts = list(_by_weight(stages))
        self._names = {str(v.name()): v for v in self._counts}
        self._rows = self._relaxed_rows()

    def _relaxed_rows(self) -> list[tuple[str, Any, int]]:
        """Each row, which may be missed at a price, so that each leaf has dual values."""
        missed = self._solver.NumVar(0.0, self._solver.infinity(), "missed")
        self._solver.Objective().SetCoefficient(missed, _PENALTY)
        rows = []
        for row in self._solver.constraints():
            sign = 1 if row.lb() > -self._solver.infinity() else -1
            row.SetCoefficient(missed, sign)
            rows.append((str(row.name()), row, sign))
        return rows

    def nodes(self, stop: StoppingCriterion) -> list[_Node] | None:
        """The tree, each node before its branches; None where a leaf cannot be refuted in time."""
        found: list[_Node] = []
        open_ = [{name: (v.lb(), v.ub()) for name, v in self._names.items()}]
        while open_ and len(found) < NODES and not stop():
            box = open_.pop()
            node, split = self._node(box)
            if node is None:
                return None
            found.append(node)
            open_ += split
        return None if open_ else found

    def _node(self, box: dict[str, Any]) -> tuple[_Node | None, list[dict[str, Any]]]:
        for name, (low, high) in box.items():
            self._names[name].SetBounds(low, high)
        if self._solver.Solve() != self._solver.OPTIMAL:
            return None, []
        if self._solver.Objective().Value() > 1 + MARGIN / 10:
            return {"multipliers": list(self._multipliers())}, []
        for variable in self._counts:
            value = variable.solution_value()
            if abs(value - round(value)) > _WHOLE:
                return _branch(variable.name(), int(value), box)
        return None, []

    def _multipliers(self) -> Iterator[dict[str, Any]]:
        for name, row, sign in self._rows:
            value = sign * row.dual_value()
            if value > 0:
                words, _, stage = name.rpartition(" ")
                yield {"inequality": words, "stage": int(stage), "by": value}


def _by_weight(stages: list[StageMoments]) -> Iterator[Any]:
    """The counts, first those that decide most: F's before the first B, the last stage's first."""
    for of_stages in zip(*(stage.counts for stage in reversed(stages)), strict=True):
        yield from of_stages


def _branch(name: str, most: int, box: dict[str, Any]) -> tuple[_Node, list[dict[str, Any]]]:
    low, high = box[name]
    count, _, stage = name.partition(" ")
    node = {"count": count, "stage": int(stage), "most": most}
    return node, [box | {name: (most + 1, high)}, box | {name: (low, most)}]
