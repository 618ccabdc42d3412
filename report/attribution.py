"""Compares a measured schedule with its plan, and attributes the additional time to causes.

The chain is the measured critical path. It is followed backwards from the op that ended last: from
each op to the one that it waited for longest. The additional time of the chain adds up exactly::

    measured - planned = slower ops + uneven ops + late receives + host + late start - slack
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

from pipeloom.ir.cost.spread import ExpectedMakespan
from pipeloom.ir.errors import InputError
from pipeloom.ir.model.ops import Op, OpKind
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.units import counted

from .bars import peak_memory, timed


@dataclass(frozen=True, slots=True)
class Causes:
    """Milliseconds beyond the plan, by cause; negative if it was faster.

    - ``slower``: the median time of ops of this kind and stage exceeds the profile's.
    - ``uneven``: the op took longer than that median, for example due to contention, clocks or a
      warm-up in the first step.
    - ``receive``: an input from another rank arrived later than planned.
    - ``host``: the op started late although all its inputs were there and the previous op had
      ended.
    - ``start``: the first op of the chain began after the first op of all.
    """

    slower: float = 0.0
    uneven: float = 0.0
    receive: float = 0.0
    host: float = 0.0
    start: float = 0.0

    @property
    def total(self) -> float:
        return self.slower + self.uneven + self.receive + self.host + self.start

    def __add__(self, other: Causes) -> Causes:
        names = [field.name for field in fields(self)]
        return Causes(**{name: getattr(self, name) + getattr(other, name) for name in names})


@dataclass(frozen=True, slots=True)
class OpLoss:
    """An op of the chain with its planned and measured time, in ms, and the causes of the
    difference.

    ``gap``: measured idle time before it, in ms.
    """

    rank: int
    op: Op
    planned: float
    measured: float
    gap: float
    causes: Causes


@dataclass(frozen=True, slots=True)
class RankLoss:
    """The makespan of one rank in parts, in milliseconds, and its peak memory.

    ``waiting``: idle until other ranks had computed an input, and after the last op. ``receive``:
    idle from then until it arrived. ``host``: idle with all inputs there.
    """

    rank: int
    planned_compute: float
    compute: float
    waiting: float
    receive: float
    host: float
    planned_peak: float
    peak: float


@dataclass(frozen=True, slots=True)
class Attribution:
    """The causes of the difference between planned and measured makespan, in milliseconds.

    ``measured - planned`` equals ``causes.total - slack``. ``slack``: the planned makespan less the
    planned length of the chain, which need not be the longest chain of the plan. ``chain``: its ops
    in the order in which they ran. ``expected``: the makespan to be expected if op times vary by
    the profile's spread, if that is known.
    """

    planned: float
    measured: float
    slack: float
    causes: Causes
    chain: tuple[OpLoss, ...]
    ranks: tuple[RankLoss, ...]
    expected: ExpectedMakespan | None = None


def attribute(planned: Schedule, measured: Schedule) -> Attribution:
    """Attribute the time by which ``measured`` exceeds ``planned`` to causes.

    Traces do not contain weight transfers; they count with their planned durations, from the
    measured ends of the ops that they wait for. Raises InputError if the two schedules do not run
    the same ops in the same order on each rank, or if ``measured`` has no times.
    """
    if measured.timing is None:
        raise InputError("measured schedule: expected times, got none")
    _check_same_ops(planned, measured)
    planned, measured = timed(planned), timed(measured)
    comparison = _Comparison(planned, measured)
    chain = tuple(reversed(list(comparison.chain())))
    causes = sum((loss.causes for loss in chain), Causes())
    plan, took = planned.known_timing.makespan, measured.known_timing.makespan
    ranks = tuple(comparison.rank(rank) for rank in range(planned.problem.ranks))
    expected = ExpectedMakespan.of(planned, took)
    return Attribution(plan, took, causes.total - (took - plan), causes, chain, ranks, expected)


def _check_same_ops(planned: Schedule, measured: Schedule) -> None:
    if planned.problem.ranks != measured.problem.ranks:
        raise InputError(
            f"measured schedule: expected {counted(planned.problem.ranks, 'rank')} as planned, "
            f"got {measured.problem.ranks}"
        )
    for rank in range(planned.problem.ranks):
        ours, theirs = planned.ops(rank), measured.ops(rank)
        if ours != theirs:
            at = next(
                (i for i, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]),
                min(len(ours), len(theirs)),
            )
            got = str(theirs[at]) if at < len(theirs) else "the end"
            wanted = str(ours[at]) if at < len(ours) else "the end"
            raise InputError(
                f"measured schedule: rank {rank}, op {at}: expected {wanted} as planned, got {got}"
            )


class _Waited(NamedTuple):
    """A node that an op or a transfer waits for, and the planned delay after its end, in ms."""

    node: int
    delay: float


class _Waiting:
    """The nodes (ops, then transfers) that each node waits for, with their measured times."""

    def __init__(self, schedule: Schedule, end: Sequence[float]) -> None:
        # importing numba takes longer than drawing
        from pipeloom.ir.cost.dependency_graph import ScheduleGraph

        graph = ScheduleGraph.of(schedule)
        self._end, self._durations = end, graph.duration.tolist()
        self._waits: defaultdict[int, list[_Waited]] = defaultdict(list)
        for origins, nodes, delays in graph.all_edges:
            for origin, node, delay in zip(
                *(a.tolist() for a in (origins, nodes, delays)), strict=True
            ):
                self._waits[node].append(_Waited(origin, delay))
        self._sent: dict[int, float] = {}

    def last(self, node: int) -> _Waited | None:
        """The predecessor of ``node`` that arrives last, with its planned delay; None if there is
        none."""
        return max(self._waits[node], key=self.came, default=None)

    def came(self, waited: _Waited) -> float:
        return self.done(waited.node) + waited.delay

    def done(self, node: int) -> float:
        """The measured end of an op; for a transfer, its end if it takes its planned time."""
        if node < len(self._end):
            return self._end[node]
        pending = [node]
        while pending:  # not recursive: chains may have thousands of transfers
            at = pending[-1]
            missing = [w.node for w in self._waits[at] if self._unknown(w.node)]
            pending += missing
            if not missing:
                last = self.last(at)
                self._sent[at] = self._durations[at] + (self.came(last) if last else 0.0)
                pending.pop()
        return self._sent[node]

    def op_before(self, node: int) -> _Waited | None:
        """The op that ``node`` waited for last, and the planned time from its end, through
        transfers.

        None if there is no such op, for example if a transfer could start at the beginning.
        """
        last, way = self.last(node), 0.0
        while last is not None and last.node >= len(self._end):
            way += last.delay + self._durations[last.node]
            last = self.last(last.node)
        return last and _Waited(last.node, last.delay + way)

    def made_elsewhere(self, node: int, track_of: Sequence[tuple[int, bool]]) -> list[_Waited]:
        """The predecessors of ``node`` that are on other tracks."""
        return [
            w
            for w in self._waits[node]
            if w.node >= len(track_of) or track_of[w.node] != track_of[node]
        ]

    def _unknown(self, node: int) -> bool:
        return node >= len(self._end) and node not in self._sent


class _Comparison:
    """The planned and the measured times, with ops numbered rank after rank."""

    def __init__(self, planned: Schedule, measured: Schedule) -> None:
        self._schedules = planned, measured
        ranks = range(planned.problem.ranks)
        self._ops = [op for rank in ranks for op in planned.ops(rank)]
        self._rank = [rank for rank in ranks for _ in planned.ops(rank)]
        # copies to and from the host have their own track; ranks wait for them as for messages
        copies = [op.kind.copies for op in self._ops]
        self._track = [*zip(self._rank, copies, strict=True)]
        starts, ends = _flat(planned)
        self._planned = [end - start for start, end in zip(starts, ends, strict=True)]
        self._start, self._end = _flat(measured)
        self._took = [e - s for s, e in zip(self._start, self._end, strict=True)]
        self._clock = _Waiting(planned, self._end)
        self._usual = self._medians()

    def chain(self) -> Iterator[OpLoss]:
        """The critical chain, backwards from the op that ended last to one that waited for none."""
        node: int | None = max(range(len(self._ops)), key=self._end.__getitem__, default=None)
        while node is not None:
            before = self._clock.op_before(node)
            yield self._loss(node, before)
            node = before.node if before else None

    def _loss(self, node: int, before: _Waited | None) -> OpLoss:
        op, rank = self._ops[node], self._rank[node]
        planned, took, usual = self._planned[node], self._took[node], self._usual[op.kind, op.stage]
        gap = self._start[node] - (self._end[before.node] if before else 0.0)
        causes = Causes(slower=usual - planned, uneven=took - usual)
        if before is None:
            causes += Causes(start=gap)
        elif self._track[before.node] == self._track[node] and before.delay == 0:
            causes += Causes(host=gap)
        else:
            causes += Causes(receive=gap - before.delay)
        return OpLoss(rank, op, planned, took, gap, causes)

    def rank(self, rank: int) -> RankLoss:
        nodes = [node for node, track in enumerate(self._track) if track == (rank, False)]
        waiting = receive = host = before = 0.0
        for node in nodes:
            others = self._clock.made_elsewhere(node, self._track)
            made = max((self._clock.done(w.node) for w in others), default=0.0)
            came = max(map(self._clock.came, others), default=0.0)
            gap = max(0.0, self._start[node] - before)
            idle = min(max(made - before, 0.0), gap)
            waiting += idle
            receive += gap - idle if came > before else 0.0
            host += 0.0 if came > before else gap - idle
            before = self._end[node]
        planned, measured = self._schedules
        return RankLoss(
            rank,
            planned_compute=sum(self._planned[node] for node in nodes),
            compute=sum(self._took[node] for node in nodes),
            waiting=waiting + measured.known_timing.makespan - before,
            receive=receive,
            host=host,
            planned_peak=peak_memory(planned)[rank],
            peak=peak_memory(measured)[rank],
        )

    def _medians(self) -> dict[tuple[OpKind, int], float]:
        """The median time of the ops of each kind and stage."""
        took: defaultdict[tuple[OpKind, int], list[float]] = defaultdict(list)
        for op, time in zip(self._ops, self._took, strict=True):
            took[op.kind, op.stage].append(time)
        return {key: statistics.median(values) for key, values in took.items()}


def _flat(schedule: Schedule) -> tuple[list[float], list[float]]:
    """The starts and the ends of all ops, rank after rank."""
    timing = schedule.known_timing
    return (
        [t for row in timing.start for t in row.tolist()],
        [t for row in timing.end for t in row.tolist()],
    )
