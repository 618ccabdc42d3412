"""A window of a schedule: the ops that ranks run between two moments, and what surrounds them.

Ops before the window keep their times. Ops after it have latest starts with which the ranks end in
time. Ops of one *class* keep their order: ops of one kind, stage, stream and choice of remat (F's
of all choices are one class).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from math import inf

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.cost.dependency_graph import EdgeKind, ScheduleGraph, joined
from pipeloom.ir.cost.remat import RECOMPUTED, STAYS, choice_of
from pipeloom.ir.model.ops import (
    CLASS_MASK,
    KIND_MASK,
    KINDS,
    FloatArray,
    IntArray,
    OpKind,
    fields_of,
)

from ...core.streams import stream_numbers, streams_of
from .rank_orders import OpClass, OpenOrders

_F, _B, _W, _BW, _R = OpKind.F, OpKind.B, OpKind.W, OpKind.BW, OpKind.R


class ScheduleWindow:
    """The ops of each rank r at positions ``first[r]`` to ``stop[r] - 1``, and what surrounds them.

    ``graph``: of a timed schedule. The inputs of the ops come from before the window or from it.
    Ops of the window are numbered from 0, rank after rank: those of the schedule in order, then R's
    that may be added. ``orders``: the open orders of the ranks; if given, each class is numbered by
    position, and memory decides some orders. ``free``: whether R's may be added or left out;
    ``optional`` then maps each such R to its F.
    """

    def __init__(
        self,
        graph: ScheduleGraph,
        first: IntArray,
        stop: IntArray,
        orders: Sequence[OpenOrders] = (),
        *,
        free: bool = False,
    ) -> None:
        schedule = graph.schedule
        assert schedule.timing is not None
        self.schedule, self.first, self.stop = schedule, first, stop
        self.offsets = graph.offsets.tolist()
        self.costs = Costs.of(schedule.problem)
        self._choice = choice_of(schedule.problem, schedule.order)
        self.begins, self._end = map(np.concatenate, (schedule.timing.start, schedule.timing.end))
        self.durations, self.flat = graph.duration, np.concatenate(schedule.order)
        self._gather(free=free)
        self.classes = self._by_class()
        self._inputs(graph)
        self.waits += [(i, k, 0.0) for i, k in self._by_memory(orders)]

    def _gather(self, *, free: bool) -> None:
        """Collect the window's ops."""
        self._at: dict[int, int] = {}
        self.optional: dict[int, int] = {}
        packed: list[IntArray] = []
        begin: list[FloatArray] = []
        ranks: list[int] = []
        bounds = zip(self.offsets, self.first.tolist(), self.stop.tolist(), strict=False)
        for rank, (at, first, stop) in enumerate(bounds):
            row, starts = self.flat[at + first : at + stop], self.begins[at + first : at + stop]
            number = len(ranks)
            self._at |= {node: number + i for i, node in enumerate(range(at + first, at + stop))}
            more, before = self._possible(row) if free else (row[:0], row[:0])
            packed += [row, more]
            begin += [starts, starts[before]]
            ranks += [rank] * (len(row) + len(more))
        self.packed, self.begin = np.concatenate(packed), np.concatenate(begin)
        self.rank = np.array(ranks)
        self.takes = self.costs.of_ops(self.packed)
        self.kind, self.stage, self.microbatch = fields_of(self.packed)
        if free:
            names = {name: i for i, name in enumerate(self._names())}
            for (kind, s, j), i in names.items():
                ends = {(int(_B), s, j), (int(_BW), s, j)}
                if kind == _R and (int(_F), s, j) in names and ends & names.keys():
                    self.optional[i] = names[int(_F), s, j]

    def _possible(self, row: IntArray) -> tuple[IntArray, IntArray]:
        """The R's that may be added to a rank's row, and the positions of their B's.

        These are the R's of microbatches that stay and whose F and B are in the window.
        """
        kind, stage, microbatch = fields_of(row)
        costs, backward = self.costs, (kind == _B) | (kind == _BW)
        name = (row & ~CLASS_MASK) | stage
        whole = np.isin(name, name[kind == _F])
        frees = np.isfinite(costs.durations[_R]) & (costs.m_b > costs.kept[RECOMPUTED])
        stays = (self._choice[stage, microbatch] == STAYS) & frees[stage]
        at = np.flatnonzero(backward & whole & stays)
        return (row[at] & ~KIND_MASK) | int(_R), at

    def ops(self, rank: int) -> range:
        """The numbers of a rank's ops."""
        here = np.searchsorted(self.rank, [rank, rank + 1])
        return range(int(here[0]), int(here[1]))

    def opens(self, rank: int) -> bool:
        """Whether the rank's first op is in the window."""
        return bool(self.first[rank] == 0 < self.stop[rank])

    def latest(self, deadlines: Sequence[float]) -> tuple[list[float], list[float]]:
        """The latest end of each op of the window, and of all of them on each rank.

        With these, the ranks can still end by ``deadlines``.
        """
        duration, offsets = self.durations.tolist(), self.offsets
        start = [inf] * len(duration)
        ranks = zip(pairwise(offsets), deadlines, strict=True)
        last = {end - 1: deadline for (at, end), deadline in ranks if at < end}
        for u in self._behind:
            most = last[u] if u in last else start[u + 1]
            for v, delay in self._after[u]:
                most = min(most, start[v] - delay)
            start[u] = most - duration[u]
        ends = [inf] * len(self.packed)
        for i, v, delay in self._leave:
            ends[i] = min(ends[i], start[v] - delay)
        first = [at + stop for at, stop in zip(offsets, self.stop.tolist(), strict=False)]
        closes = [
            start[at] if at < end else deadline
            for at, end, deadline in zip(first, offsets[1:], deadlines, strict=True)
        ]
        return ends, closes

    def _by_class(self) -> list[list[int]]:
        """The ops of each class in the order of the schedule."""
        stream = stream_numbers(self.schedule.problem)[self.microbatch]
        choice = self._choice[self.stage, self.microbatch] * (self.kind != _F)
        keys = np.stack([self.kind, self.stage, stream, choice], axis=1)
        found: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for i in np.argsort(self.begin, kind="stable").tolist():
            found[tuple(keys[i].tolist())].append(i)
        return list(found.values())

    def _inputs(self, graph: ScheduleGraph) -> None:
        """Collect the dependencies of ops in the window, and of ops after it."""
        inputs = joined([graph.edges[EdgeKind.INPUT], graph.edges[EdgeKind.ACTIVATION]])
        last = np.array(self.offsets[:-1]) + self.first - 1  # before the window, on each rank
        ends = np.where(self.first > 0, self._end[last], -inf)
        self.ready: list[float] = np.maximum(0.0, ends[self.rank]).tolist()
        self.waits: list[tuple[int, int, float]] = []
        self._leave: list[tuple[int, int, float]] = []
        self._after: dict[int, list[tuple[int, float]]] = defaultdict(list)
        behind = (np.array(self.offsets[:-1]) + self.stop)[graph.ranks]
        later = (np.arange(len(behind)) >= behind).tolist()
        for u, v, delay in zip(*(each.tolist() for each in inputs), strict=True):
            i, k = self._at.get(u), self._at.get(v)
            if i is not None and k is not None:
                self.waits.append((i, k, delay))
            elif k is not None:
                self.ready[k] = max(self.ready[k], float(self._end[u]) + delay)
            elif i is not None:
                self._leave.append((i, v, delay))
            elif later[u]:
                self._after[u].append((v, delay))
        nodes = np.flatnonzero(later)
        self._behind = nodes[np.lexsort((nodes, self._end[nodes], self.begins[nodes]))][
            ::-1
        ].tolist()
        for each in self.classes:
            self.waits += [(i, k, 0.0) for i, k in pairwise(each)]
        again = {(s, j): i for i, (kind, s, j) in enumerate(self._names()) if kind == _R}
        for i, (kind, s, j) in enumerate(self._names()):
            if (s, j) in again and kind in {_F, _B, _BW}:
                pair = (i, again[s, j]) if kind == _F else (again[s, j], i)
                self.waits.append((*pair, 0.0))

    def _by_memory(self, orders: Iterable[OpenOrders]) -> Iterator[tuple[int, int]]:
        """Yield pairs of ops in a fixed order, because memory has no room for the other order."""
        streams = streams_of(self.schedule.problem)
        number = {j: (n, k) for n, own in enumerate(streams) for k, j in enumerate(own)}
        at: dict[OpClass, dict[int, int]] = defaultdict(dict)
        for i, (kind, s, j) in enumerate(self._names()):
            stream, k = number[j]
            at[OpClass(KINDS[kind], s, stream)][k] = i
        for rank in orders:
            for a, b in rank.pairs():
                apart = rank.ahead(a, b) + 1
                for k, i in at[a].items():
                    if k - apart in at[b]:
                        yield at[b][k - apart], i

    def _names(self) -> Iterator[tuple[int, int, int]]:
        """Yield kind, stage and microbatch of each op."""
        return zip(self.kind.tolist(), self.stage.tolist(), self.microbatch.tolist(), strict=True)
