"""``optimize --explain``: why no schedule is cheaper than the lower bound, and where a schedule
loses time.

The arguments are those of the lower bounds (:class:`pipeloom.solver.core.bound.Bound`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, replace
from typing import Any

import numpy as np

from pipeloom.ir.cost.overlap import overlap_saves
from pipeloom.ir.cost.simulator import timed
from pipeloom.ir.model.ops import KIND_MASK, FloatArray, IntArray, OpKind
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.units import duration
from pipeloom.report.text_table import Cell, table
from pipeloom.solver.bounds import lower_bounds, work_bound
from pipeloom.solver.bounds.feasibility import check_feasible
from pipeloom.solver.bounds.milp_relaxation import remat_relaxation
from pipeloom.solver.core.bound import Bound
from pipeloom.solver.core.relaxations import offloadable, recomputable
from pipeloom.solver.core.schedule_cost import objective_cost
from pipeloom.solver.core.stopping import Budget
from pipeloom.solver.core.tolerances import ROUNDING

from ..inputs.documents import Document, Planned, read_schedule

RELAXING = 3.0
"""Time limit, in seconds, of the MILP of the bound ``remat-relaxation``, whose solution shows which
rank determines the bound."""


@dataclass(frozen=True, slots=True)
class BoundReason:
    """An argument why no schedule costs less than ``value`` milliseconds.

    ``name``: the name of the bound. ``rank``: the rank that limits the cost;
    None if there is no single one. ``words``: the argument, in lines of text.
    """

    name: str
    value: float
    rank: int | None
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Loss:
    """The time of one rank in a schedule, in five parts, in milliseconds. Their sum is the cost.

    ``work``: computation. ``head``: idle before its first B. ``tail``: idle after the start of its
    last F (or of its first B, if that is later). ``between``: idle between ``head`` and ``tail``.
    ``spare``: the cost minus the time from the rank's first op to its last; for a makespan, this is
    the time before its first op and after its last.
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
    """Return, for each rank, how it spends the time of the schedule, whose times are simulated."""
    timing = timed(schedule).known_timing
    cost = timing.cost(schedule.problem.objective)
    rows = zip(schedule.order, timing.start, timing.end, strict=True)
    return [_loss(rank, cost, *row) for rank, row in enumerate(rows)]


def _loss(rank: int, cost: float, ops: IntArray, start: FloatArray, end: FloatArray) -> Loss:
    if len(ops) == 0:
        return Loss(rank, 0.0, 0.0, 0.0, 0.0, cost)
    kinds = ops & KIND_MASK
    # idle time before each op; not negative for the second op of a pair, which starts early
    idle = np.append(0.0, np.maximum(0.0, start[1:] - end[:-1]))
    first_b = int(np.argmax(kinds != OpKind.F))
    last_f = len(kinds) - 1 - int(np.argmax(kinds[::-1] == OpKind.F))
    late = max(first_b, last_f)
    head, between, tail = (float(part.sum()) for part in np.split(idle, (first_b + 1, late + 1)))
    span = float(end[-1] - start[0])
    return Loss(rank, span - float(idle.sum()), head, between, tail, cost - span)


def why(schedule: Schedule) -> BoundReason:
    """Return the argument for the lower bound in the schedule's report; if the report has none,
    that for the best closed-form bound.

    If the bound was proven in another way, the argument names it, and the best closed-form argument
    follows. If it was proven by a small MILP, the argument names the rank that limits
    the cost, and the effect of more memory. Raises InfeasibleError if no schedule fits within the
    problem's memory limit.
    """
    problem, report = schedule.problem, schedule.report
    check_feasible(problem)
    reason = _simplest(problem)
    if report is None or report.lower_bound is None:
        return reason
    name, value = str(report.bound), report.lower_bound
    if name == "remat-relaxation" and value > reason.value:
        found = remat_relaxation(problem, objective_cost(schedule), Budget(RELAXING))
        if found is not None:
            return _reason(problem, replace(found, name=name, value=value))
    if value <= reason.value:
        same = name != reason.name and value >= reason.value * (1 - ROUNDING)
        more = (f"{name}, in the report, is another proof of this",) * same
        return replace(reason, value=min(reason.value, value), words=(*reason.words, *more))
    words = f"{duration(value)} is proven by {name}; in closed form, {duration(reason.value)} is"
    return BoundReason(name, value, reason.rank, (words, *reason.words))


def _simplest(problem: Problem) -> BoundReason:
    """Return the argument for the best closed-form bound. If several bounds have the same value,
    the first one is taken, as its argument is the simplest."""
    found = list(lower_bounds(problem))
    best = max(bound.value for bound in found)
    first = next(bound for bound in found if bound.value >= best * (1 - ROUNDING))
    return _reason(problem, replace(first, value=best))


def _reason(problem: Problem, bound: Bound) -> BoundReason:
    if overlap_saves(problem):  # the numbers in the argument would not count what pairs save
        return BoundReason(bound.name, bound.value, None, (bound.words, PAIRED))
    free = bool((recomputable(problem) | offloadable(problem)).any())
    relaxed = free and bound.name != "work" and not bound.name.startswith("remat")
    words = (*bound.explained(), *([RELAXED_REMAT] if relaxed else []))
    return BoundReason(bound.name, bound.value, bound.rank, words)


SHOWN = 16
"""Maximum number of ranks in the table of losses. If there are more, the first rank, the last rank
and the ranks with the least ``spare`` time are shown."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """An explanation of a schedule's cost: ``cost`` milliseconds, by the ``objective``.

    ``reason``: why no schedule costs less than the lower bound. ``losses``: how each rank spends
    the time. ``step``: if the schedule was chosen by step time, a pair of its step time and a lower
    bound on the step time of all schedules with its placement; else None.
    """

    objective: str
    cost: float
    reason: BoundReason
    losses: Sequence[Loss]
    step: tuple[float, float] | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "step": self.step and dict(zip(("value", "bound"), self.step, strict=True)),
            "bound": asdict(self.reason),
            "losses": [asdict(loss) for loss in self.losses],
        }

    def __str__(self) -> str:
        parts = [self._chosen(), self._why(), self._where()]
        return "\n\n".join("\n".join(lines) for lines in parts if lines)

    def _chosen(self) -> list[str]:
        if self.step is None:
            return []
        step, least = map(_duration, self.step)
        return [
            f"chosen for its step of {step}; no step of this placement is below {least}, "
            "what the busiest rank computes",
            f"what follows is about the {self.objective}",
        ]

    def _why(self) -> list[str]:
        rank = "" if self.reason.rank is None else f", rank {self.reason.rank} binds"
        head = f"why no schedule is below {_duration(self.reason.value)} ({self.reason.name}{rank})"
        return [head, *(f"  {words}" for words in self.reason.words)]

    def _where(self) -> list[str]:
        header = ["rank", "computes", "before first B", "in between", "after last F", "spare", ""]
        rows: list[list[Cell]] = [
            [str(loss.rank), *astuple(loss)[1:], "binds" * (loss.rank == self.reason.rank)]
            for loss in _shown(self.losses)
        ]
        spare = {
            "period": "spare: what the rank spans less than the period",
            "makespan": "spare: before the rank's first op and after its last",
        }[self.objective]
        lines = [f"where {_duration(self.cost)} of {self.objective} go on each rank ({spare})"]
        return lines + [f"  {line}" for line in table(header, rows).splitlines()]


def explain(schedule: Schedule | Planned | Document) -> Explanation:
    """Explain why no schedule is cheaper, and where this one loses time.

    ``schedule``: an object, a JSON object, a file, or a result of ``optimize``. Raises InputError
    if the file or object is invalid.
    """
    found = timed(read_schedule(schedule)[0])
    problem, step = found.problem, getattr(schedule, "step", None)
    return Explanation(
        problem.objective.value,
        found.known_timing.cost(problem.objective),
        why(found),
        losses(found),
        None if step is None else (step, work_bound(problem).value),
    )


def _shown(losses: Sequence[Loss]) -> list[Loss]:
    if len(losses) <= SHOWN:
        return list(losses)
    ends = {losses[0].rank, losses[-1].rank}
    worst = sorted(losses, key=lambda loss: loss.spare)[: SHOWN - len(ends)]
    kept = ends | {loss.rank for loss in worst}
    return [loss for loss in losses if loss.rank in kept]


def _duration(milliseconds: float) -> str:
    return duration(milliseconds) if milliseconds > 1e-6 else "0"
