"""Compares a measured schedule with its plan, and attributes the additional time to causes.

The *chain* is the critical path of the measured schedule. It is found backwards from the op that
ended last: before each op comes the op that it waited for longest. The additional time along the
chain adds up exactly::

    measured - planned = slower ops + uneven ops + late receives + host + late start - slack

:class:`Causes` and :class:`Attribution` define the terms on the right.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple, dataclass
from graphlib import TopologicalSorter
from itertools import zip_longest
from operator import itemgetter
from typing import Any, TypeAlias

from pipeloom.ir.cost.dependency_graph import ScheduleGraph
from pipeloom.ir.cost.spread import ExpectedMakespan
from pipeloom.ir.errors import InputError
from pipeloom.ir.model.ops import Op, OpKind
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.units import counted, memory_size

from .bars import peak_memory, timed
from .text_table import table

SHOWN = 5
"""The number of ops of the chain that the text lists."""
LEAST = 5e-4
"""A difference of fewer milliseconds than this is not shown."""
CAUSES = {
    "slower": "what ops took beyond the profile, each kind and stage in its median",
    "uneven": "what ops took beyond their own median: contention, clocks",
    "receive": "inputs that came later than planned",
    "host": "idle though all inputs were there",
    "start": "the chain's first op began late",
}


@dataclass(frozen=True, slots=True)
class Causes:
    """Milliseconds by which the measured time exceeds the plan, by cause; negative if it is
    shorter.

    - ``slower``: the median time of ops of this kind and stage exceeds the profile's.
    - ``uneven``: the op took longer than that median, for example due to contention, clocks or a
      warm-up in the first step.
    - ``receive``: an input from another rank arrived later than planned.
    - ``host``: the op started late although all its inputs had arrived and the previous op had
      ended.
    - ``start``: the first op of the chain started later than the first op of the whole schedule.
    """

    slower: float = 0.0
    uneven: float = 0.0
    receive: float = 0.0
    host: float = 0.0
    start: float = 0.0

    @property
    def total(self) -> float:
        return float(sum(astuple(self)))


@dataclass(frozen=True, slots=True)
class OpLoss:
    """An op of the chain with its planned and measured duration, in ms, and the causes of the
    difference.

    ``gap``: measured time from the end of the previous op of the chain to the start of this op, in
    ms.
    """

    rank: int
    op: Op
    planned: float
    measured: float
    gap: float
    causes: Causes


@dataclass(frozen=True, slots=True)
class RankLoss:
    """The time of one rank in the measured makespan, divided into parts in ms, and its peak memory.

    ``planned_compute`` and ``compute``: time in ops, planned and measured. The measured idle time
    is divided into ``waiting`` (until other ranks had computed an input, and after the rank's last
    op), ``receive`` (from the end of that computation until the input had arrived) and ``host``
    (after all inputs had arrived). ``planned_peak`` and ``peak``: planned and recorded peak memory,
    in the profile's unit.
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

    ``measured - planned`` equals ``causes.total - slack``. ``slack``: the planned makespan minus
    the planned length of the chain, which need not be the longest chain of the plan. ``causes``:
    summed over the chain. ``chain``: its ops in the order in which they ran. ``ranks``: the time of
    each rank. ``expected``: the makespan to be expected if op times vary by the profile's spread,
    or None if the profile has no spread.
    """

    planned: float
    measured: float
    slack: float
    causes: Causes
    chain: tuple[OpLoss, ...]
    ranks: tuple[RankLoss, ...]
    expected: ExpectedMakespan | None = None

    def to_dict(self) -> dict[str, Any]:
        """The whole attribution as a dictionary for JSON, with ops as text."""
        chain = [asdict(loss) | {"op": str(loss.op)} for loss in self.chain]
        return asdict(self) | {"chain": chain}

    def __str__(self) -> str:
        """Three tables: causes of the difference, ranks, and the ops that lost most time."""
        beyond = self.measured - self.planned
        parts = [(name, getattr(self.causes, name), words) for name, words in CAUSES.items()]
        parts.append(("slack", -self.slack, "the plan had a longer chain than this one"))
        rows = [[name, _signed(ms), words] for name, ms, words in parts if abs(ms) >= LEAST]
        percent = round(beyond / self.planned * 100, 1) if self.planned > 0 else None
        share = "" if percent is None else f" ({percent + 0.0:+.1f} %)"  # + 0.0 turns -0.0 into 0.0
        head = (
            f"makespan {self.planned:.5g} ms planned, {self.measured:.5g} ms measured, "
            f"{_signed(beyond)} ms{share}, along the chain of ops that ended last:"
        )
        expected = [] if self.expected is None else [f"expected: {self.expected}"]
        shown = [head, table(["cause", "ms", ""], rows), self._ranks(), *self._ops(), *expected]
        return "\n\n".join(shown)

    def _ranks(self) -> str:
        times = ["planned compute", "compute", "waiting", "receive", "host"]
        rows = []
        for rank, *figures in map(astuple, self.ranks):
            shown = [f"{ms:.5g}" for ms in figures[: len(times)]]
            rows.append([str(rank), *shown, *map(memory_size, figures[len(times) :]), ""])
        return table(["rank", *times, "planned peak", "peak", ""], rows)

    def _ops(self) -> list[str]:
        most = sorted(self.chain, key=lambda loss: loss.causes.total, reverse=True)[:SHOWN]
        rows = []
        for loss in (loss for loss in most if loss.causes.total >= LEAST):
            times = [f"{ms:.5g}" for ms in (loss.planned, loss.measured, loss.gap)]
            _, mostly = max(zip(astuple(loss.causes), CAUSES, strict=True), key=itemgetter(0))
            beyond = _signed(loss.causes.total)
            rows.append([str(loss.rank), str(loss.op), *times, beyond, mostly])
        header = ["rank", "op", "planned", "measured", "waited", "beyond", "mostly"]
        return [table(header, rows)] if rows else []


def _signed(milliseconds: float) -> str:
    if abs(milliseconds) < LEAST:
        return "+0.000"
    return f"{milliseconds:+.3f}" if abs(milliseconds) < 10 else f"{milliseconds:+.1f}"


def attribute(planned: Schedule, measured: Schedule) -> Attribution:
    """Attribute the time by which ``measured`` exceeds ``planned`` to causes.

    Traces do not contain weight transfers. Each transfer is assumed to start when the measured ops
    that it waits for have ended, and to take its planned time. Raises InputError if the two
    schedules do not run the same ops in the same order on each rank, or if ``measured`` has no
    times.
    """
    if measured.timing is None:
        raise InputError("measured schedule: expected times, got none")
    _check_same_ops(planned, measured)
    planned, measured = timed(planned), timed(measured)
    comparison = _Comparison(planned, measured)
    chain = tuple(reversed(list(comparison.chain())))
    causes = Causes(*map(sum, zip(*(astuple(loss.causes) for loss in chain), strict=True)))
    plan, took = planned.known_timing.makespan, measured.known_timing.makespan
    ranks = tuple(comparison.rank(rank) for rank in range(planned.problem.ranks))
    expected = ExpectedMakespan.of(planned, took)
    return Attribution(plan, took, causes.total - (took - plan), causes, chain, ranks, expected)


def _check_same_ops(planned: Schedule, measured: Schedule) -> None:
    ranks, found = planned.problem.ranks, measured.problem.ranks
    if ranks != found:
        words = f"expected {counted(ranks, 'rank')} as planned, got {found}"
        raise InputError(f"measured schedule: {words}")
    for rank in range(ranks):
        pairs = zip_longest(planned.ops(rank), measured.ops(rank), fillvalue="the end")
        for at, (wanted, got) in enumerate(pairs):
            if wanted != got:
                words = f"rank {rank}, op {at}: expected {wanted} as planned, got {got}"
                raise InputError(f"measured schedule: {words}")


_Waited: TypeAlias = tuple[int, float]
"""A node that an op or a transfer waits for, and the planned delay between that node's end and the
start of the waiting one, in ms."""


class _Comparison:
    """The planned and the measured times of all nodes of the schedule's graph.

    The nodes are numbered: first the ops, rank after rank, then the transfers.
    """

    def __init__(self, planned: Schedule, measured: Schedule) -> None:
        self._schedules = planned, measured
        self._peaks = peak_memory(planned), peak_memory(measured)
        ranks = range(planned.problem.ranks)
        self._ops = [op for rank in ranks for op in planned.ops(rank)]
        self._rank = [rank for rank in ranks for _ in planned.ops(rank)]
        # a track runs one node after the other: a rank's ops, or its copies to and from the host
        copies = [op.kind.copies for op in self._ops]
        self._track: list[tuple[int, bool] | None] = [*zip(self._rank, copies, strict=True)]
        self._track += [None] * len(planned.transfers)
        starts, ends = _flat(planned)
        self._planned = [end - start for start, end in zip(starts, ends, strict=True)]
        self._start, self._end = _flat(measured)
        self._took = [e - s for s, e in zip(self._start, self._end, strict=True)]
        graph = ScheduleGraph.of(planned)
        self._duration: list[float] = graph.duration.tolist()
        self._waits: defaultdict[int, list[_Waited]] = defaultdict(list)
        for edges in graph.all_edges:
            for origin, node, delay in zip(*(a.tolist() for a in edges), strict=True):
                self._waits[node].append((origin, delay))
        self._done = self._ends()
        self._usual = self._medians()

    def _ends(self) -> list[float]:
        """The end of each node in ms: as measured for ops, and calculated for transfers.

        A transfer takes its planned time from the moment when all nodes that it waits for have
        ended.
        """
        done, ops = [*self._end, *self._duration[len(self._end) :]], len(self._end)
        before = {
            node: [origin for origin, _ in self._waits[node] if origin >= ops]
            for node in range(ops, len(done))
        }
        for node in TopologicalSorter(before).static_order():
            done[node] += max((done[o] + delay for o, delay in self._waits[node]), default=0.0)
        return done

    def _came(self, waited: _Waited) -> float:
        """The time in ms at which the output of the node in ``waited`` reaches the waiting node."""
        node, delay = waited
        return self._done[node] + delay

    def _op_before(self, node: int) -> _Waited | None:
        """The op whose output ``node`` waited for longest, directly or through transfers.

        Returns this op's node and the planned time, in ms, from its end to the arrival of its
        output. None if there is no such op, for example if a transfer could start at the beginning.
        """
        last, way = max(self._waits[node], key=self._came, default=None), 0.0
        while last is not None and last[0] >= len(self._ops):
            way += last[1] + self._duration[last[0]]
            last = max(self._waits[last[0]], key=self._came, default=None)
        return last and (last[0], last[1] + way)

    def chain(self) -> Iterator[OpLoss]:
        """Yield the ops of the critical chain, backwards from the op that ended last.

        The first op of the chain, which is the last one yielded, waited for no other op.
        """
        node: int | None = max(range(len(self._ops)), key=self._end.__getitem__, default=None)
        while node is not None:
            before = self._op_before(node)
            yield self._loss(node, before)
            node = before[0] if before else None

    def _loss(self, node: int, before: _Waited | None) -> OpLoss:
        op, planned, took = self._ops[node], self._planned[node], self._took[node]
        usual = self._usual[op.kind, op.stage]
        gap = self._start[node] - (self._end[before[0]] if before else 0.0)
        if before is None:
            late = {"start": gap}
        elif self._track[before[0]] == self._track[node] and before[1] == 0:
            late = {"host": gap}
        else:
            late = {"receive": gap - before[1]}
        causes = Causes(slower=usual - planned, uneven=took - usual, **late)
        return OpLoss(self._rank[node], op, planned, took, gap, causes)

    def rank(self, rank: int) -> RankLoss:
        nodes = [node for node, track in enumerate(self._track) if track == (rank, False)]
        waiting = receive = host = before = 0.0
        for node in nodes:
            others = [w for w in self._waits[node] if self._track[w[0]] != self._track[node]]
            made = max((self._done[origin] for origin, _ in others), default=0.0)
            came = max(map(self._came, others), default=0.0)
            gap = max(0.0, self._start[node] - before)
            idle = min(max(made - before, 0.0), gap)
            waiting += idle
            receive += gap - idle if came > before else 0.0
            host += 0.0 if came > before else gap - idle
            before = self._end[node]
        planned_peaks, peaks = self._peaks
        return RankLoss(
            rank,
            planned_compute=sum(self._planned[node] for node in nodes),
            compute=sum(self._took[node] for node in nodes),
            waiting=waiting + self._schedules[1].known_timing.makespan - before,
            receive=receive,
            host=host,
            planned_peak=planned_peaks[rank],
            peak=peaks[rank],
        )

    def _medians(self) -> dict[tuple[OpKind, int], float]:
        """The median measured time of the ops of each kind and stage, in ms."""
        took: defaultdict[tuple[OpKind, int], list[float]] = defaultdict(list)
        for op, time in zip(self._ops, self._took, strict=True):
            took[op.kind, op.stage].append(time)
        return {key: statistics.median(values) for key, values in took.items()}


def _flat(schedule: Schedule) -> tuple[Sequence[float], Sequence[float]]:
    """The starts and the ends of all ops in ms, rank after rank."""
    timing = schedule.known_timing
    start, end = ([t for row in rows for t in row.tolist()] for rows in (timing.start, timing.end))
    return start, end
