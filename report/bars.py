"""Bars of ops, and memory over time: common to all pictures of a schedule."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipeloom.ir.formats.schedule_json import timing_of
from pipeloom.ir.model.ops import Op, OpKind
from pipeloom.ir.model.problem import Objective
from pipeloom.ir.model.schedule import Averaged, Schedule, Timing


@dataclass(frozen=True, slots=True)
class OpBar:
    """One op of a rank; ``shade`` goes from 0 at the rank's first stage to 1 at its last.

    ``half``: 0 or 1 for the first or the second op of a pair that runs at once, else None.
    """

    rank: int
    op: Op
    start: float
    end: float
    shade: float
    half: int | None = None


def timed(schedule: Schedule) -> Schedule:
    """``schedule`` with its times: recorded or simulated, its first op at 0."""
    timing = timing_of(schedule)
    begin = min((float(start.min()) for start in timing.start if len(start)), default=0.0)
    return replace(schedule, timing=_earlier(timing, begin))


def _earlier(timing: Timing, by: float) -> Timing:
    return replace(
        timing,
        start=tuple(start - by for start in timing.start),
        end=tuple(end - by for end in timing.end),
        transfers=timing.transfers - by,
        averages=tuple(
            tuple(one._replace(start=one.start - by, end=one.end - by) for one in row)
            for row in timing.averages
        ),
    )


def averages(schedule: Schedule, rank: int) -> Sequence[Averaged]:
    """The averages of ``rank`` over replicas, beside its ops."""
    rows = schedule.known_timing.averages
    return rows[rank] if rows else ()


def counted(schedule: Schedule, rank: int) -> tuple[float, float]:
    """From when to when idle time of ``rank`` counts in the bubble rate: one period from its first
    op on, or the makespan."""
    timing, objective = schedule.known_timing, schedule.problem.objective
    start = timing.start[rank]
    begin = float(start[0]) if len(start) and objective is Objective.PERIOD else 0.0
    return begin, begin + timing.cost(objective)


def last(schedule: Schedule) -> float:
    """When all ops, transfers and averages are over, and all idle time that counts."""
    timing = schedule.known_timing
    ends = [one.end for row in timing.averages for one in row]
    ends += [counted(schedule, rank)[1] for rank in range(schedule.problem.ranks)]
    ends += timing.transfers[:, 1].tolist()
    return max(timing.makespan, *ends)


def bars(schedule: Schedule, rank: int) -> Iterator[OpBar]:
    """The ops that occupy ``rank`` in its order, each with its time and its stage's shade."""
    return (bar for bar in _every(schedule, rank) if not bar.op.kind.copies)


def copies(schedule: Schedule, rank: int) -> Iterator[OpBar]:
    """The copies to and from the host beside the ops of ``rank``."""
    return (bar for bar in _every(schedule, rank) if bar.op.kind.copies)


def _every(schedule: Schedule, rank: int) -> Iterator[OpBar]:
    timing = schedule.known_timing
    ops = schedule.ops(rank)
    stages = sorted({op.stage for op in ops})
    shade = {stage: i / max(1, len(stages) - 1) for i, stage in enumerate(stages)}
    firsts = schedule.pairs[rank] if schedule.pairs else ()
    halves = dict.fromkeys(firsts, 0) | {at + 1: 1 for at in firsts}
    times_of = zip(timing.start[rank].tolist(), timing.end[rank].tolist(), strict=True)
    for at, (op, (start, end)) in enumerate(zip(ops, times_of, strict=True)):
        yield OpBar(rank, op, start, end, shade[op.stage], halves.get(at))


def kinds(schedule: Schedule) -> list[OpKind]:
    """The kinds of op that ``schedule`` has, in order."""
    return sorted({op.kind for rank in range(schedule.problem.ranks) for op in schedule.ops(rank)})


def memory_steps(schedule: Schedule, rank: int) -> list[tuple[float, float]]:
    """(time, memory held from then on) whenever what ``rank`` holds changes."""
    stages = schedule.problem.profile.stages
    changes: list[tuple[float, float]] = []
    shown = list(_every(schedule, rank))
    again = {(bar.op.stage, bar.op.microbatch) for bar in shown if bar.op.kind is OpKind.R}
    for bar in shown:
        pair = bar.op.stage, bar.op.microbatch
        stage = stages[bar.op.stage].at(bar.op.microbatch)
        m_r, m_o = stage.kept if pair in again else stage.m_b, stage.m_o or 0.0
        at, change = {
            OpKind.F: (bar.start, m_r),
            OpKind.R: (bar.start, stage.m_b - m_r),
            OpKind.O: (bar.end, m_o - stage.m_b),
            OpKind.L: (bar.start, stage.m_b - m_o),
            OpKind.B: (bar.end, stage.m_w - stage.m_b),
            OpKind.W: (bar.end, -stage.m_w),
            OpKind.BW: (bar.end, -stage.m_b),
        }[bar.op.kind]
        changes.append((at, change))
    changes.sort(key=lambda change: change[0])  # copies overlap with ops; the sort is stable
    held = np.cumsum([change for _, change in changes])
    return [(at, max(0.0, value)) for (at, _), value in zip(changes, held.tolist(), strict=True)]


def peak_memory(schedule: Schedule) -> tuple[float, ...]:
    """The largest memory of each rank: as recorded (measured, maybe), else summed."""
    ranks = schedule.problem.ranks
    if schedule.timing is not None and len(schedule.timing.peak_memory) == ranks:
        return schedule.timing.peak_memory
    return tuple(max((h for _, h in memory_steps(schedule, r)), default=0.0) for r in range(ranks))


def fullest(schedule: Schedule) -> int:
    """The rank that fills the largest share of its limit; without limits, the one that holds
    most."""
    limits, peaks = schedule.problem.memory_limit, peak_memory(schedule)

    def filled(rank: int) -> tuple[float, float]:
        return peaks[rank] / limits[rank] if limits[rank] > 0 else 1.0, peaks[rank]

    return max(range(len(peaks)), key=filled)


def memory_scale(schedules: Iterable[Schedule]) -> float:
    """The largest limit or peak of any rank: what a whole gauge is, on one scale for a picture."""
    sizes = (
        size
        for schedule in schedules
        for size in (*peak_memory(timed(schedule)), *schedule.problem.memory_limit)
        if np.isfinite(size)
    )
    return max(sizes, default=0.0)
