"""Schedules of real microbatches as solutions of the formulation, which has positions, and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.errors import InvalidScheduleError
from pipeloom.ir.model.ops import FloatArray, IntArray, Op, OpKind, pack
from pipeloom.ir.model.schedule import Report, Schedule

from ..core.schedule_cost import objective_cost, within_memory
from .formulation import Formulation


@dataclass(frozen=True, slots=True, eq=False)
class Positions:
    """A solution: ``start`` of each op, (N,), and each rank's ops in the order of their starts."""

    start: FloatArray
    order: tuple[tuple[int, ...], ...]

    @property
    def places(self) -> dict[int, int]:
        return {i: n for row in self.order for n, i in enumerate(row)}


def to_positions(formulation: Formulation, schedule: Schedule) -> Positions:
    """``schedule`` with its earliest times as a solution; a fused BW becomes B, then W.

    Raises ValueError where it exceeds a memory limit, for then it is no solution.
    """
    timing = schedule.timing or simulate(schedule)
    if not within_memory(schedule.problem, timing):
        raise ValueError(f"incumbent holds {timing.peak_memory}, more than its limit")
    start = np.zeros(len(formulation.ops))
    order = []
    for rank, starts in enumerate(timing.start):
        seen: dict[tuple[OpKind, int], int] = {}
        row = []
        for op, begin in zip(schedule.ops(rank), starts.tolist(), strict=True):
            for kind in (OpKind.B, OpKind.W) if op.kind is OpKind.BW else (op.kind,):
                k = seen.get((kind, op.stage), 0)
                seen[kind, op.stage] = k + 1
                i = formulation.index(kind, op.stage, k)
                start[i] = begin
                if op.kind is OpKind.BW and kind is OpKind.W:
                    start[i] += formulation.costs.durations[OpKind.B, op.stage]
                row.append(i)
        order.append(tuple(row))
    return Positions(start, tuple(order))


def to_schedule(
    formulation: Formulation, positions: Positions, report: Report, slack: float
) -> Schedule | None:
    """The better of two schedules of ``positions``, timed by the simulator; None if neither holds.

    One takes positions for microbatches, the other names microbatches so that every rank starts as
    late as it does in ``positions`` (see *first starts* in :mod:`.formulation`). ``slack``: by how
    much times may be off.
    """
    stages, microbatches = formulation.costs.owner.shape
    plain = np.tile(np.arange(microbatches), (stages, 1))
    found = [_named(formulation, positions, plain, report)]
    named = _microbatches(formulation, positions, slack)
    if not np.array_equal(named, plain):
        found.append(_named(formulation, positions, named, report))
    valid = [schedule for schedule in found if schedule is not None]
    return min(valid, key=objective_cost, default=None)


def _microbatches(formulation: Formulation, positions: Positions, slack: float) -> IntArray:
    """The microbatch of the k-th F of each stage, (S, M)."""
    stages, microbatches = formulation.costs.owner.shape
    end = positions.start + formulation.duration
    free = {b: end[a] for row in positions.order for a, b in pairwise(row)}
    names = np.tile(np.arange(microbatches), (stages, 1))
    for s in range(1, stages):
        arrival = [
            end[formulation.index(OpKind.F, s - 1, k)] + formulation.costs.into_f[s, 0]
            for k in range(microbatches)
        ]
        left = list(range(microbatches))
        for k in range(microbatches):
            i = formulation.index(OpKind.F, s, k)
            begin = positions.start[i]
            waits = begin > free.get(i, -np.inf) + slack
            pick = _pick(arrival, left, begin + slack, waits)
            left.remove(pick)
            names[s, k] = names[s - 1, pick]
    return names


def _pick(arrival: Sequence[float], left: list[int], by: float, waits: bool) -> int:
    """The F to take of those left: the last to arrive ``by`` then if one waits, else the first."""
    there = [k for k in left if arrival[k] <= by] or left[:1]
    return there[-1] if waits else there[0]


def _named(
    formulation: Formulation, positions: Positions, names: IntArray, report: Report
) -> Schedule | None:
    """B's and W's take the microbatches in the order in which the last stage runs their F's."""
    problem = formulation.problem

    def op(i: int) -> Op:
        kind, stage, k = (o := formulation.ops[i]).kind, o.stage, o.microbatch
        return Op(kind, stage, int(names[stage if kind is OpKind.F else -1, k]))

    order = tuple(pack(map(op, row)) for row in positions.order)
    schedule = Schedule(problem, order, report=report)
    try:
        timing = simulate(schedule)
    except InvalidScheduleError:
        return None
    return replace(schedule, timing=timing) if within_memory(problem, timing) else None
