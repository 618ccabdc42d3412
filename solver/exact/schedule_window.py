"""A window of a schedule as an instance: the order of the ops in a time window may change.

Ops before the window keep their times. Ops after it keep their order: they have latest starts with
which the ranks end in time; if a rank's first op comes after the window, it keeps its time as well.
A *class* is the ops of one kind, stage, stream and choice of remat (stay, recompute or offload; F's
of all choices are one class); the ops of a class keep their order. A microbatch with its F and B in
the window may be recomputed or stay.

If the instance has no solution, nothing is proven about other schedules, as all ops outside the
window are fixed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.cost.dependency_graph import EdgeKind, ScheduleGraph, joined
from pipeloom.ir.cost.remat import RECOMPUTED, STAYS, choice_of, held, pulled
from pipeloom.ir.model.ops import KIND_MASK, FloatArray, IntArray, OpKind, fields_of
from pipeloom.ir.model.problem import Objective

from ..core.streams import stream_numbers, streams_of
from ..core.tolerances import ROUNDING
from .instance import B, F, Instance, OpClass, R, Wait

_BW = OpKind.BW
_Edge = tuple[int, float]  # a node of the graph that waits, and the delay
Decided = Sequence[tuple[int, OpClass, OpClass, int]]


class ScheduleWindow:
    """A part of a schedule whose order may change: some successive ops of each rank.

    On each rank r, these are the ops at positions ``first[r]`` to ``stop[r] - 1`` of its order.
    Some ranks may have none, but not all. If the objective is the period, no rank's first op may be
    among them. ``graph``: the graph of a schedule that contains its timing. ``decided``: the orders
    that memory decides, as :func:`.instance.decided` yields them; to be given only if the ops of
    each class run in ascending order of microbatches. ``free``: whether R's may be added or left
    out.
    """

    def __init__(
        self,
        graph: ScheduleGraph,
        first: IntArray,
        stop: IntArray,
        decided: Decided = (),
        *,
        free: bool = False,
    ) -> None:
        timing, problem = graph.schedule.timing, graph.schedule.problem
        assert timing is not None
        self._graph, self._problem, self._decided = graph, problem, decided
        self._period = problem.objective is Objective.PERIOD
        self._offsets, self._first, self._stop = graph.offsets[:-1], first, stop
        self._costs, self._flat = Costs.of(problem), np.concatenate(graph.schedule.order)
        self._choice = choice_of(problem, graph.schedule.order)
        self._begins, self._ends = map(np.concatenate, (timing.start, timing.end))
        behind = (self._offsets + self._stop)[graph.ranks]
        self._later = np.arange(len(self._flat)) >= behind
        self._gather(free=free)

    def _gather(self, *, free: bool) -> None:
        """Collect the window's ops, and number them by their start times in the schedule.

        With ``free``, they include the R's that may be added, which get the start times of their
        B's.
        """
        rows = zip(self._offsets + self._first, self._offsets + self._stop, strict=True)
        nodes = np.concatenate([np.arange(at, to) for at, to in rows])
        again = self._possible(nodes) if free else nodes[:0]
        every = np.concatenate([nodes, again])
        packed = self._flat[every]
        packed[len(nodes) :] += int(R) - (packed[len(nodes) :] & KIND_MASK)
        begin = self._begins[every]
        end = np.concatenate([self._ends[nodes], self._begins[again]])
        order = np.lexsort((every, end, begin))
        self._packed, self._begin = packed[order], begin[order]
        self._rank = self._graph.ranks[every][order]
        self._takes = self._costs.of_ops(self._packed)
        self._kind, self._stage, self._microbatch = fields_of(self._packed)
        self._number = {name: i for i, name in enumerate(self._packed.tolist())}
        self._at = {n: self._number[name] for n, name in zip(nodes, self._flat[nodes], strict=True)}
        self._optional = self._left_out() if free else {}

    def _possible(self, nodes: IntArray) -> IntArray:
        """The B's and BW's in the window before which an R may be added, as nodes of the graph.

        Their microbatches must stay in memory so far (neither recomputed nor offloaded), and have
        their F in the window. ``nodes``: the nodes of all ops in the window.
        """
        kind, stage, microbatch = fields_of(self._flat[nodes])
        costs, backward = self._costs, (kind == B) | (kind == _BW)
        name = stage * self._problem.microbatches + microbatch
        whole = np.isin(name, name[kind == F])
        frees = np.isfinite(costs.durations[R]) & (costs.m_b > costs.kept[RECOMPUTED])
        stays = (self._choice[stage, microbatch] == STAYS) & frees[stage]
        return np.asarray(nodes[backward & whole & stays])

    def _left_out(self) -> dict[int, tuple[int, float]]:
        """The R's that may be left out: those whose F and B (or BW) are in the window.

        Returns a map from the number of each such R to the number of its F and the memory that
        recomputing saves between F and R.
        """
        found, freed = {}, self._costs.m_b - self._costs.kept[RECOMPUTED]
        for i in np.flatnonzero(self._kind == R).tolist():
            f, *backwards = (self._other(i, kind) for kind in (F, B, _BW))
            if f is not None and any(b is not None for b in backwards):
                found[i] = f, float(freed[self._stage[i]])
        return found

    def _other(self, i: int, kind: OpKind) -> int | None:
        """The number of the op of this ``kind`` for the stage and microbatch of op number i.

        Returns None if that op is not in the window.
        """
        return self._number.get(int(self._packed[i] - self._kind[i]) + int(kind))

    @property
    def hint(self) -> FloatArray:
        """The start of each op of the window in the schedule, shape (N,).

        Starts are relative to the earliest of them.
        """
        return np.asarray(self._begin - self._begin.min())

    def instance(self, cost: float) -> Instance:
        """The instance of all orders of the window's ops.

        Latest ends limit the cost of the whole schedule to ``cost``.
        """
        ready, waits, leaves, after = self._inputs()
        classes = self._classes()
        waits += [(i, k, 0.0) for row in classes for i, k in pairwise(row)]
        waits += [*self._by_memory(), *self._around_recomputation()]
        zero, takes, costs = float(self._begin.min()), self._takes.tolist(), self._costs
        order = self._graph.schedule.order
        rows = zip(order, self._first.tolist(), self._stop.tolist(), strict=True)
        times = costs.into_f.ravel(), costs.into_b.ravel(), self._graph.duration, self._takes
        return Instance(
            packed=self._packed,
            rank=self._rank,
            takes=self._takes,
            waits=[(i, k, takes[i] + delay) for i, k, delay in waits],
            classes=classes,
            memory=dict(self._memory()),
            ready=ready - zero,
            due=self._latest(cost, leaves, after) - zero,
            times=np.concatenate(times),
            ranks=len(order),
            optional=self._optional,
            around=[(row[:first], row[stop:]) for row, first, stop in rows],
        )

    def _classes(self) -> list[list[int]]:
        """For each class, the numbers of its ops in the order in which the schedule runs them."""
        stream = stream_numbers(self._problem)[self._microbatch]
        choice = self._choice[self._stage, self._microbatch] * (self._kind != F)
        keys = np.stack([self._kind, self._stage, stream, choice], axis=1)
        found: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for i, key in enumerate(keys.tolist()):
            found[tuple(key)].append(i)
        return list(found.values())

    def _inputs(self) -> tuple[FloatArray, list[Wait], list[Wait], dict[int, list[_Edge]]]:
        """The dependencies of the window's ops, except those due to the order of ops on a rank.

        An op has a number in the window, and a node in the graph. Returns four results: the
        earliest start of each op of the window, given the ops before the window, shape (N,); the
        dependencies between ops of the window, (number, number, delay); those of later ops on ops
        of the window, (number, node, delay); and those between later ops, as a map from a node to
        the list of the nodes that wait for it, each with its delay.
        """
        edges = self._graph.edges
        inputs = joined([edges[EdgeKind.INPUT], edges[EdgeKind.ACTIVATION]])
        last = self._offsets + self._first - 1  # the last op before the window, on each rank
        ends = np.where(self._first > 0, self._ends[last], 0.0)
        ready = np.maximum(0.0, ends[self._rank])
        waits, leaves = list[Wait](), list[Wait]()
        after: dict[int, list[_Edge]] = defaultdict(list)
        for u, v, delay in zip(*(each.tolist() for each in inputs), strict=True):
            i, k = self._at.get(u), self._at.get(v)
            if i is not None and k is not None:
                waits.append((i, k, delay))
            elif k is not None:
                ready[k] = max(ready[k], float(self._ends[u]) + delay)
            elif i is not None:
                leaves.append((i, v, delay))
            elif self._later[u]:
                after[u].append((v, delay))
        return ready, waits, leaves, after

    def _latest(
        self, cost: float, leaves: Sequence[Wait], after: dict[int, list[_Edge]]
    ) -> FloatArray:
        """For each op of the window, its latest end in schedules that cost at most ``cost``.

        The result has shape (N,). ``leaves``, ``after``: the third and the fourth result of
        :meth:`_inputs`.
        """
        start = np.where(self._later, inf, self._begins).tolist()
        duration, offsets = self._graph.duration.tolist(), self._graph.offsets.tolist()
        deadlines = {
            to - 1: cost + float(self._begins[at]) * self._period
            for at, to in pairwise(offsets)
            if at < to
        }
        nodes = np.flatnonzero(self._later)
        behind = nodes[np.lexsort((nodes, self._ends[nodes], self._begins[nodes]))][::-1]
        for u in behind.tolist():
            most = deadlines[u] if u in deadlines else start[u + 1]
            for v, delay in after[u]:
                most = min(most, start[v] - delay)
            start[u] = most - duration[u]
        stops = (self._offsets + self._stop).tolist()
        closes = [
            start[at] if at < to else deadlines.get(to - 1, inf)
            for at, to in zip(stops, offsets[1:], strict=True)
        ]
        due = np.array(closes)[self._rank]
        for i, v, delay in leaves:
            due[i] = min(due[i], start[v] - delay)
        return np.asarray(due)

    def _around_recomputation(self) -> Iterator[Wait]:
        """Yield waits with delay 0 by which each R runs after its F and before its B or BW."""
        for i in np.flatnonzero(self._kind == R).tolist():
            if (f := self._other(i, F)) is not None:
                yield f, i, 0.0
            for b in (self._other(i, B), self._other(i, _BW)):
                if b is not None:
                    yield i, b, 0.0

    def _by_memory(self) -> Iterator[Wait]:
        """Yield the orders that memory decides (:func:`.instance.decided`) as waits.

        Their delays are 0.
        """
        streams = streams_of(self._problem)
        number = {j: (n, k) for n, own in enumerate(streams) for k, j in enumerate(own)}
        at: dict[tuple[int, int, int], dict[int, int]] = defaultdict(dict)
        names = zip(self._kind.tolist(), self._stage.tolist(), strict=True)
        for i, ((kind, s), j) in enumerate(zip(names, self._microbatch.tolist(), strict=True)):
            stream, k = number[j]
            at[stream, kind, s][k] = i
        for stream, a, b, ahead in self._decided:
            others = at[stream, int(b.kind), b.stage]
            for k, i in at[stream, int(a.kind), a.stage].items():
                if k - ahead - 1 in others:
                    yield others[k - ahead - 1], i, 0.0

    def _memory(self) -> Iterator[tuple[int, list[tuple[FloatArray, float]]]]:
        """Yield (rank, memory constraints) for each rank with a memory limit and ops in the window.

        The constraints are those in ``memory`` of :class:`.instance.Instance`: one on all memory
        and, without remat, one on the M_B of microbatches between F and B.
        """
        schedule, costs = self._graph.schedule, self._costs
        remat = pulled(schedule.order) or bool(self._optional)
        sizes = np.broadcast_to(costs.m_b.reshape(len(costs.m_b), -1), costs.owner.shape)
        firsts = [f for f, _ in self._optional.values()]
        for rank, memory in enumerate(held(self._problem, schedule.order)):
            first, at = int(self._first[rank]), int(self._offsets[rank])
            ops, limit = np.flatnonzero(self._rank == rank), float(costs.limit[rank])
            if not len(ops) or limit == inf:
                continue
            change, before = np.zeros(len(self._packed)), float(memory[first - 1]) if first else 0.0
            steps = np.diff(memory[first : int(self._stop[rank])], prepend=before)
            change[[self._at[at + first + n] for n in range(len(steps))]] = steps
            change[firsts] = costs.m_b[self._stage[firsts]]
            change[list(self._optional)] = 0.0
            room = limit * (1 + ROUNDING)
            rows = [(change[ops], room - before)]
            if not remat:
                kind, stage, microbatch = fields_of(schedule.order[rank])
                ways = (kind == F) * 1.0 - (kind == B) - (kind == _BW)
                waiting = float((sizes[stage, microbatch] * ways)[:first].sum())
                kind, stage, microbatch = fields_of(self._packed[ops])
                ways = (kind == F) * 1.0 - (kind == B) - (kind == _BW)
                rows.append((sizes[stage, microbatch] * ways, room - waiting))
            yield rank, rows
