"""Bars of ops and memory over time, used by all pictures of a schedule."""

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
    """One op of a rank; ``shade`` is 0 for the rank's first stage and 1 for its last.

    ``half``: 0 for the first and 1 for the second op of a pair that runs at once, otherwise None.
    """

    rank: int
    op: Op
    start: float
    end: float
    shade: float
    half: int | None = None


def timed(schedule: Schedule) -> Schedule:
    """``schedule`` with recorded or simulated times, shifted so that its first op starts at 0."""
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
            tuple(replace(one, start=one.start - by, end=one.end - by) for one in row)
            for row in timing.averages
        ),
    )


def averages(schedule: Schedule, rank: int) -> Sequence[Averaged]:
    """The averages of ``rank`` over replicas."""
    rows = schedule.known_timing.averages
    return rows[rank] if rows else ()


def counted(schedule: Schedule, rank: int) -> tuple[float, float]:
    """The start and end, in ms, of the interval in which idle time of ``rank`` counts as bubble.

    This is one period from the rank's first op on, or the makespan, depending on the objective.
    """
    timing, objective = schedule.known_timing, schedule.problem.objective
    start = timing.start[rank]
    begin = float(start[0]) if len(start) and objective is Objective.PERIOD else 0.0
    return begin, begin + timing.cost(objective)


def last(schedule: Schedule) -> float:
    """The end, in ms, of all ops, transfers, averages and counted idle time."""
    timing = schedule.known_timing
    ends = [one.end for row in timing.averages for one in row]
    ends += [counted(schedule, rank)[1] for rank in range(schedule.problem.ranks)]
    ends += timing.transfers[:, 1].tolist()
    return max(timing.makespan, *ends)


def bars(schedule: Schedule, rank: int) -> Iterator[OpBar]:
    """The ops that occupy ``rank``, in order."""
    return (bar for bar in _every(schedule, rank) if not bar.op.kind.copies)


def copies(schedule: Schedule, rank: int) -> Iterator[OpBar]:
    """The copies to and from the host of ``rank``."""
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
    """The kinds of ops in ``schedule``, in the order of :class:`OpKind`."""
    return sorted({op.kind for rank in range(schedule.problem.ranks) for op in schedule.ops(rank)})


def memory_steps(schedule: Schedule, rank: int) -> list[tuple[float, float]]:
    """The memory that ``rank`` holds over time: (time, memory from then on) at each change."""
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
    changes.sort(key=lambda change: change[0])  # stable; copies overlap with ops
    held = np.cumsum([change for _, change in changes])
    return [(at, max(0.0, value)) for (at, _), value in zip(changes, held.tolist(), strict=True)]


def peak_memory(schedule: Schedule) -> tuple[float, ...]:
    """The peak memory of each rank: recorded (possibly measured), otherwise by
    :func:`memory_steps`."""
    ranks = schedule.problem.ranks
    if schedule.timing is not None and len(schedule.timing.peak_memory) == ranks:
        return schedule.timing.peak_memory
    return tuple(max((h for _, h in memory_steps(schedule, r)), default=0.0) for r in range(ranks))


def fullest(schedule: Schedule) -> int:
    """The rank that uses the largest share of its limit; without limits, the one with most."""
    limits, peaks = schedule.problem.memory_limit, peak_memory(schedule)

    def filled(rank: int) -> tuple[float, float]:
        return peaks[rank] / limits[rank] if limits[rank] > 0 else 1.0, peaks[rank]

    return max(range(len(peaks)), key=filled)


def memory_scale(schedules: Iterable[Schedule]) -> float:
    """The largest limit or peak of any rank: the full scale of the gauges in a picture."""
    sizes = (
        size
        for schedule in schedules
        for size in (*peak_memory(timed(schedule)), *schedule.problem.memory_limit)
        if np.isfinite(size)
    )
    return max(sizes, default=0.0)
