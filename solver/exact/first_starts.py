"""Constraints on when a rank's first ops start, which make solutions of an instance schedules.

In :mod:`.instance`, the k-th op of a class belongs to microbatch k: ops are numbered by position,
which keeps all times. But the times of a schedule follow from its *order*, as each op starts as
soon as possible, and the period counts from each rank's first start. For the makespan, an earlier
start is never worse. For the period it can be: a rank whose first op is the F of the second
microbatch to arrive starts later, and may have a shorter span
(``tests/unit/support/test_oracle.py`` has an example).

In the times of a schedule, every op before a rank's first B (all of them are F's) starts exactly
when the previous op on the rank ends or some F of the previous stage arrives: :class:`Earliest`.
Conversely, times with this property belong to an order of real microbatches, which
:func:`to_schedule` finds: sort a stage's F's by start. Those that start at an arrival take the
microbatch that has just arrived, all others the first one that is available. As the set of
microbatches that have arrived only grows, one is always available. First starts depend only on F's,
because a B on any rank comes after an F on every rank. So with these constraints, the optimum over
positions is the optimum over all valid schedules, including those in which another microbatch is
first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.errors import InvalidScheduleError
from pipeloom.ir.model.ops import CLASS_MASK, MICROBATCH_SHIFT, FloatArray, IntArray, fields_of
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.schedule import Schedule

from ..core.schedule_cost import objective_cost, within_memory
from ..core.streams import by_turns
from .instance import B, F, Instance


@dataclass(frozen=True, slots=True)
class Earliest:
    """A constraint: the F ``op`` starts exactly when one of several ops ends, plus a delay.

    ``after``: pairs (op, delay) for these ops: other ops of the rank, with delay 0, and F's of the
    previous stage, with the delay of their output. If it is empty, ``op`` starts at 0. ``unless``:
    the first B of each stage of the rank; if one of these runs before ``op``, the constraint does
    not apply. Ops are given by their numbers in the instance.
    """

    op: int
    unless: tuple[int, ...]
    after: tuple[tuple[int, float], ...]


def earliest(problem: Problem, instance: Instance) -> list[Earliest]:
    """The constraints on all F's that may run before the first B of their rank.

    Returns an empty list if the objective is the makespan, which needs no such constraints.
    """
    if problem.objective is Objective.MAKESPAN:
        return []
    costs, rules, every = Costs.of(problem), list[Earliest](), range(problem.microbatches)
    for rank, ops in enumerate(instance.rank_ops):
        known, at = instance.known(rank), {i: n for n, i in enumerate(ops.tolist())}
        stages = problem.placement.stages_of(rank)
        unless = tuple(instance.at(B, s, 0) for s in stages)
        for s, k in ((s, k) for s in stages for k in every):
            i = instance.at(F, s, k)
            if any(known[at[b], at[i]] for b in unless):
                continue
            others = [(t, j) for t in stages for j in (every if t != s else every[:k][-1:])]
            found = {instance.at(F, t, j): 0.0 for t, j in others}
            if s > 0:
                delay = float(costs.into_f[s, 0])
                found |= {instance.at(F, s - 1, j): delay for j in every[k:]}
            after = ((o, d) for o, d in found.items() if o not in at or not known[at[i], at[o]])
            rules.append(Earliest(i, unless, tuple(after)))
    return rules


def starts_of(instance: Instance, schedule: Schedule) -> FloatArray:
    """For each of the instance's N ops, its start in ``schedule``, shape (N,).

    First, each BW of the schedule is split into B and W, and microbatches are renamed by position.
    Raises ValueError if the schedule exceeds a memory limit, because then it is not a solution of
    the instance.
    """
    order = by_turns(schedule.problem, schedule.order)
    timing = simulate(Schedule(schedule.problem, order))
    if not within_memory(schedule.problem, timing):
        raise ValueError(f"incumbent holds {timing.peak_memory}, more than its limit")
    found = np.empty(len(instance.packed))
    found[[instance.number[packed] for packed in np.concatenate(order).tolist()]] = np.concatenate(
        timing.start
    )
    return found


def to_schedule(
    positions: Schedule, instance: Instance, start: FloatArray, slack: float
) -> Schedule | None:
    """Convert a solution of ``instance`` to a schedule with its timing.

    Two schedules are tried, and the better one is returned; None if both are invalid or exceed a
    memory limit. In one, the k-th op of each class is that of microbatch k. In the other,
    microbatches are named such that every rank starts as late as in the solution.

    ``positions``: the order of the solution, in which the k-th op of each class is named after
    microbatch k. ``start``: the starts of the instance's ops in the solution, shape (N,).
    ``slack``: the largest error of ``start``.
    """
    names = _microbatches(positions, instance, start, slack)
    found = [valid(positions), valid(_renamed(positions, names))]
    known = [schedule for schedule in found if schedule is not None]
    return min(known, key=objective_cost, default=None)


def _microbatches(
    positions: Schedule, instance: Instance, start: FloatArray, slack: float
) -> IntArray:
    """Choose microbatches for all F's, such that F's can start when they do in the solution.

    Returns an array of shape (S, M): entry [s, k] is the microbatch of the k-th F of stage s, where
    k counts from 0. The arguments are those of :func:`to_schedule`.
    """
    problem = positions.problem
    end, into, every = start + instance.takes, Costs.of(problem).into_f, range(problem.microbatches)
    rows = [[instance.number[packed] for packed in row.tolist()] for row in positions.order]
    free = {b: float(end[a]) for row in rows for a, b in pairwise(row)}
    names = np.tile(np.arange(problem.microbatches), (problem.stages, 1))
    for s in range(1, problem.stages):
        arrival = [float(end[instance.at(F, s - 1, k)] + into[s, 0]) for k in every]
        left = list(every)
        for k in every:
            i = instance.at(F, s, k)
            waits = float(start[i]) > free.get(i, -np.inf) + slack
            pick = _pick(arrival, left, float(start[i]) + slack, waits)
            left.remove(pick)
            names[s, k] = names[s - 1, pick]
    return names


def _pick(arrival: Sequence[float], left: list[int], by: float, waits: bool) -> int:
    """Choose the microbatch of an F; return the position of its F on the previous stage.

    ``arrival[k]``: the time when the output of the F at position k of the previous stage arrives.
    ``left``: the positions that are not chosen yet, in ascending order. ``by``: the start of the F.
    ``waits``: whether the F waits for an arrival. If so, the last position in ``left`` whose output
    has arrived by then is chosen, otherwise the first such position; if no output has arrived, the
    first position in ``left``.
    """
    there = [k for k in left if arrival[k] <= by] or left[:1]
    return there[-1] if waits else there[0]


def _renamed(positions: Schedule, names: IntArray) -> Schedule:
    """Rename the microbatches of the ops in ``positions``.

    In F's of stage s, microbatch k becomes ``names[s, k]``. In B's and W's of all stages it becomes
    ``names[-1, k]``, as in the F's of the last stage.
    """
    rows = []
    for row in positions.order:
        kind, stage, k = fields_of(row)
        j = names[np.where(kind == F, stage, len(names) - 1), k]
        rows.append((row & CLASS_MASK) | (j << MICROBATCH_SHIFT))
    return replace(positions, order=tuple(rows))


def valid(schedule: Schedule) -> Schedule | None:
    """The schedule with its timing, or None if it is invalid or exceeds a memory limit."""
    try:
        timing = simulate(schedule)
    except InvalidScheduleError:
        return None
    return replace(schedule, timing=timing) if within_memory(schedule.problem, timing) else None
