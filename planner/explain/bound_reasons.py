"""Why a schedule cannot be cheaper, in words and with numbers, and where it loses its time.

The arguments are the bounds' own (:class:`pipeloom.solver.core.bound.Bound`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from pipeloom.ir.cost.overlap import overlap_saves
from pipeloom.ir.cost.simulator import timed
from pipeloom.ir.model.ops import KIND_MASK, FloatArray, IntArray, OpKind
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.units import duration
from pipeloom.solver.bounds import lower_bounds
from pipeloom.solver.bounds.feasibility import check_feasible
from pipeloom.solver.bounds.milp_relaxation import remat_relaxation
from pipeloom.solver.bounds.several_stages.rank_moments import rank_relaxation
from pipeloom.solver.core.bound import Bound
from pipeloom.solver.core.relaxations import offloadable, recomputable
from pipeloom.solver.core.schedule_cost import objective_cost
from pipeloom.solver.core.stopping import Budget
from pipeloom.solver.core.tolerances import ROUNDING

SEARCHED: Mapping[str, str] = {
    "relaxation": "a small MILP over the moments that every stage has (its first B, last F, last "
    "B)",
    "crossings-search": "a search over where microbatches on their way up and down meet",
    "interleaving": "a search over which F's run before which B's, W's included",
    "rank-orders": "a search over all orders of one rank's ops, or several ranks', any others "
    "counted as ways",
    "cp-sat": "CP-SAT, which left no cheaper order",
    "milp": "the MILP, which left no cheaper order",
}
"""Bounds that a search has proven: there is no argument in closed form."""
RELAXED: Mapping[str, Callable[[Problem, float, Budget], Bound | None]] = {
    "rank-moments": rank_relaxation,
    "remat-relaxation": remat_relaxation,
}
"""Bounds by a small MILP, whose solution says which rank binds."""
RELAXING = 3.0  # seconds


@dataclass(frozen=True, slots=True)
class BoundReason:
    """Why no schedule costs less than ``value``. ``rank`` binds; None where it is no single one."""

    name: str
    value: float
    rank: int | None
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Loss:
    """A rank's use of its time; the five figures sum up to the schedule's cost.

    ``head``: idle before its first B. ``tail``: idle after its last F started (or its first B,
    where that is later). ``between``: idle between the two. ``spare``: what it spans less than the
    cost; of a makespan, the time before its first op and after its last.
    """

    rank: int
    work: float
    head: float
    between: float
    tail: float
    spare: float


RELAXED_REMAT = (
    "as if recomputation and offload took no time: a microbatch counts with the least that is kept "
    "of it, and a limit may be lower by what a backward needs besides"
)
PAIRED = "with pairs: what a pair saves counts as time that its BW does not take"


def losses(schedule: Schedule) -> list[Loss]:
    """One a rank, by the schedule's own times."""
    timing = timed(schedule).known_timing
    cost = timing.cost(schedule.problem.objective)
    rows = zip(schedule.order, timing.start, timing.end, strict=True)
    return [_loss(rank, cost, *row) for rank, row in enumerate(rows)]


def _loss(rank: int, cost: float, ops: IntArray, start: FloatArray, end: FloatArray) -> Loss:
    if len(ops) == 0:
        return Loss(rank, 0.0, 0.0, 0.0, 0.0, cost)
    kinds = ops & KIND_MASK
    # before each op; those of a pair begin at once
    idle = np.append(0.0, np.maximum(0.0, start[1:] - end[:-1]))
    first_b = int(np.argmax(kinds != OpKind.F))
    last_f = len(kinds) - 1 - int(np.argmax(kinds[::-1] == OpKind.F))
    late = max(first_b, last_f)
    head, between, tail = (float(part.sum()) for part in np.split(idle, (first_b + 1, late + 1)))
    span = float(end[-1] - start[0])
    return Loss(rank, span - float(idle.sum()), head, between, tail, cost - span)


def why(schedule: Schedule) -> BoundReason:
    """The argument behind the schedule's certified bound.

    Where a search has proven the bound, also how far the best argument in closed form goes; where a
    small MILP has, the rank that binds, and what more memory gives.
    Raises InfeasibleError where no schedule keeps the problem's limit.
    """
    problem, report = schedule.problem, schedule.report
    check_feasible(problem)
    reason = _simplest(problem)
    if report is None or report.lower_bound is None:
        return reason
    name, value = str(report.bound), report.lower_bound
    if name in RELAXED and value > reason.value:
        cost = objective_cost(schedule)
        found = RELAXED[name](problem, cost, Budget(RELAXING))
        if found is not None:
            return _reason(problem, replace(found, name=name, value=value))
    if name not in SEARCHED or value <= reason.value:
        return replace(reason, value=min(reason.value, value))
    words = (
        f"{duration(value)} is proven by {SEARCHED[name]}; in closed form, "
        f"{duration(reason.value)} is"
    )
    return BoundReason(name, value, reason.rank, (words, *reason.words))


def _simplest(problem: Problem) -> BoundReason:
    """The first argument, from simple to intricate, that gives the best bound in closed form."""
    found = list(lower_bounds(problem))
    best = max(bound.value for bound in found)
    first = next(bound for bound in found if bound.value >= best * (1 - ROUNDING))
    return _reason(problem, replace(first, value=best))


def _reason(problem: Problem, bound: Bound) -> BoundReason:
    if overlap_saves(problem):  # the numbers would be those of ops that run alone
        return BoundReason(bound.name, bound.value, None, (bound.words, PAIRED))
    free = bool((recomputable(problem) | offloadable(problem)).any())
    relaxed = free and bound.name != "work" and not bound.name.startswith("remat")
    words = (*bound.explained(), *([RELAXED_REMAT] if relaxed else []))
    return BoundReason(bound.name, bound.value, bound.rank, words)
