"""The bars of each rank, and its memory over time: the data that all pictures of a schedule
show."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipeloom.ir.cost.remat import held
from pipeloom.ir.formats.schedule_json import timing_of
from pipeloom.ir.model.ops import KIND_MASK, Op, OpKind
from pipeloom.ir.model.problem import Objective
from pipeloom.ir.model.schedule import Schedule, Timing, TransferKind

from .colours import AVERAGE, NAMES, TRANSFERS, Colour, colour


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar in the row of a rank, from ``start`` to ``end`` in ms: an op, an average or a transfer.

    Copies to and from the host are ops. ``name``: a short name, such as ``0F3``; ``words``: a
    description. ``op``: None for averages and transfers; ``kind``: None for all but transfers.
    ``half``: 0 for the first and 1 for the second op of a pair, whose ops run at the same time;
    None for other bars.
    """

    rank: int
    start: float
    end: float
    name: str
    words: str
    rgb: Colour
    op: Op | None = None
    kind: TransferKind | None = None
    half: int | None = None


@dataclass(frozen=True, slots=True)
class RankBars:
    """The bars of one rank.

    ``ops``: ops that occupy the rank. ``copies``: copies to and from the host. ``averages``:
    averages of gradients over replicas. ``arrivals``: transfers of weights and their gradients to
    the rank. ``counted``: start and end of the interval in which the rank's idle time counts as
    bubble, in ms. ``memory``: a (time in ms, memory held from then on) for each change.
    """

    rank: int
    ops: Sequence[Bar]
    copies: Sequence[Bar]
    averages: Sequence[Bar]
    arrivals: Sequence[Bar]
    counted: tuple[float, float]
    memory: Sequence[tuple[float, float]]


def timed(schedule: Schedule) -> Schedule:
    """A copy of ``schedule`` in which the first op starts at 0.

    The times are the recorded ones, or simulated ones if there are none.
    """
    timing = timing_of(schedule)
    by = min((float(start.min()) for start in timing.start if len(start)), default=0.0)
    averages = tuple(
        tuple(replace(one, start=one.start - by, end=one.end - by) for one in row)
        for row in timing.averages
    )
    start, end = (tuple(row - by for row in times) for times in (timing.start, timing.end))
    earlier = replace(timing, start=start, end=end, averages=averages)
    return replace(schedule, timing=replace(earlier, transfers=timing.transfers - by))


def rows(schedule: Schedule) -> list[RankBars]:
    """The bars of each rank of ``schedule``, which must have a timing."""
    timing = schedule.known_timing
    arrivals = list(_arrivals(schedule))
    found = []
    for rank, memory in enumerate(memory_curves(schedule)):
        every = list(_ops(schedule, rank))
        averages = list(_averages(timing, rank))
        ops = [bar for bar in every if not bar.op or not bar.op.kind.copies]
        copies = [bar for bar in every if bar.op and bar.op.kind.copies]
        arriving = [bar for bar in arrivals if bar.rank == rank]
        found.append(
            RankBars(rank, ops, copies, averages, arriving, _counted(schedule, rank), memory)
        )
    return found


def _averages(timing: Timing, rank: int) -> Iterator[Bar]:
    for one in timing.averages[rank] if timing.averages else ():
        words = f"average of stage {one.stage}"
        yield Bar(rank, one.start, one.end, f"average {one.stage}", words, AVERAGE)


def _ops(schedule: Schedule, rank: int) -> Iterator[Bar]:
    timing, ops = schedule.known_timing, schedule.ops(rank)
    stages = sorted({op.stage for op in ops})
    shade = {stage: i / max(1, len(stages) - 1) for i, stage in enumerate(stages)}
    firsts = schedule.pairs[rank] if schedule.pairs else ()
    halves = dict.fromkeys(firsts, 0) | {at + 1: 1 for at in firsts}
    times = zip(timing.start[rank].tolist(), timing.end[rank].tolist(), strict=True)
    for at, (op, (start, end)) in enumerate(zip(ops, times, strict=True)):
        words = f"{NAMES[op.kind]} of microbatch {op.microbatch} on stage {op.stage}"
        rgb = colour(op.kind, shade[op.stage])
        yield Bar(rank, start, end, str(op), words, rgb, op, half=halves.get(at))


def _arrivals(schedule: Schedule) -> Iterator[Bar]:
    times = schedule.known_timing.transfers.tolist()
    for sent, (start, end) in zip(schedule.transfers, times, strict=False):
        kind = sent.kind
        name = f"{kind.value} {sent.stage}: {sent.source} to {sent.target}"
        words = f"{kind.value} of stage {sent.stage} from rank {sent.source}"
        yield Bar(sent.target, start, end, name, words, TRANSFERS[kind], kind=kind)


def _counted(schedule: Schedule, rank: int) -> tuple[float, float]:
    """The interval, (start, end) in ms, in which a rank's idle time counts as bubble.

    It begins at the start of the rank's first op and is one period long. If the objective is the
    makespan, it begins at 0 and is one makespan long.
    """
    timing, objective = schedule.known_timing, schedule.problem.objective
    start = timing.start[rank]
    begin = float(start[0]) if len(start) and objective is Objective.PERIOD else 0.0
    return begin, begin + timing.cost(objective)


def memory_curves(schedule: Schedule) -> Iterator[list[tuple[float, float]]]:
    """Yield the memory curve of each rank as pairs (time, memory held from then on).

    The sizes are those of :func:`pipeloom.ir.cost.remat.held`. Memory changes at the start of an F,
    R or L, and at the end of any other op.
    """
    timing, curves = schedule.known_timing, held(schedule.problem, schedule.order)
    for ops, curve, start, end in zip(
        schedule.order, curves, timing.start, timing.end, strict=True
    ):
        times = np.where(np.isin(ops & KIND_MASK, (OpKind.F, OpKind.R, OpKind.L)), start, end)
        by_time = np.argsort(times, kind="stable")  # unsorted, as copies overlap
        sizes = np.cumsum(np.diff(curve, prepend=0.0)[by_time])
        sizes = np.maximum(0.0, sizes)  # measured times may deviate from the planned order
        yield [*zip(times[by_time].tolist(), sizes.tolist(), strict=True)]


def last(schedule: Schedule) -> float:
    """The time in ms when all ops, transfers, averages and counted intervals have ended."""
    timing = schedule.known_timing
    ends = [one.end for row in timing.averages for one in row]
    ends += [_counted(schedule, rank)[1] for rank in range(schedule.problem.ranks)]
    ends += timing.transfers[:, 1].tolist()
    return max(timing.makespan, *ends)


def peak_memory(schedule: Schedule) -> tuple[float, ...]:
    """The peak memory of each rank: as recorded, otherwise computed from the rank's ops.

    A recorded peak may have been measured.
    """
    if schedule.timing and len(schedule.timing.peak_memory) == schedule.problem.ranks:
        return schedule.timing.peak_memory
    curves = memory_curves(timed(schedule))
    return tuple(max((size for _, size in curve), default=0.0) for curve in curves)


def fullest(schedule: Schedule) -> int:
    """The rank whose peak memory is the largest fraction of its limit.

    Without limits, it is the rank with the largest peak.
    """
    limits, peaks = schedule.problem.memory_limit, peak_memory(schedule)

    def filled(rank: int) -> tuple[float, float]:
        return peaks[rank] / limits[rank] if limits[rank] > 0 else 1.0, peaks[rank]

    return max(range(len(peaks)), key=filled)


def memory_scale(schedules: Iterable[Schedule]) -> float:
    """The memory shown at full scale in a picture: the largest finite limit or peak of any rank.

    It is 0 if there is none.
    """
    sizes = (s for each in schedules for s in (*peak_memory(each), *each.problem.memory_limit))
    return max(filter(math.isfinite, sizes), default=0.0)
