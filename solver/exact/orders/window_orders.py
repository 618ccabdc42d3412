"""The orders of what ranks run between two moments of a schedule, as a CP-SAT model.

All other ops stay in the order in which they are, so that those before have their times, and those
behind a latest start each if the cost is to be at most a target. Ops of one class (kind, stage,
stream, and choice of remat) keep their order, too.

**Literals.** Whether an op runs before another one of its rank, where neither inputs nor earliest
and latest times decide it. A W's beside an F or R, which take memory, is true only if it has run
before, a false one says nothing; W's need no other.

**Times.** Inputs and classes' orders hold, and no two ops of a rank overlap. The ops before one fit
between the rank's last op before the window and its start, those after it between its end and the
rank's first op behind the window.

**Memory.** At each F and R what is held is within the rank's limit: all of it, and what waits for a
B alone, whose sizes are often whole numbers of one. Orders that memory decides are constraints on
times, too (:mod:`.rank_orders`).

**Period.** A rank whose first op is in the window keeps it as its first; its time begins there.

Any solution is an order to be simulated; where there is none nothing is proven, as the rest stays.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import floor, inf

import numpy as np
from ortools.sat.python import cp_model

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.cost.dependency_graph import EdgeKind, ScheduleGraph, joined
from pipeloom.ir.cost.remat import choice_of, held, pulled
from pipeloom.ir.model.ops import FloatArray, IntArray, OpKind, fields_of
from pipeloom.ir.model.problem import Objective

from ...core.decomposition import streams_of
from ...core.options import Order
from ...core.tolerances import ROUNDING
from ..integer_time import Ticks
from .general_interleaving import (
    LITERALS_A_SECOND,
    MEMORY_BITS,
    PARAMETERS,
    UNIT,
    LiteralSum,
)
from .interleaving import BITS
from .rank_orders import OpClass, OpenOrders

_F, _B, _W, _BW, _R = OpKind.F, OpKind.B, OpKind.W, OpKind.BW, OpKind.R


class ScheduleWindow:
    """What a timed schedule, whose graph is given, leaves to the ops of each rank r in places
    ``first[r]`` to ``stop[r] - 1``: what makes their inputs comes before, or is one of them.

    Ops of the window are numbered from 0, rank after rank. Microbatches come in the order of their
    numbers in each class, where memory is to decide orders: by ``orders``, those of its ranks.
    """

    def __init__(
        self,
        graph: ScheduleGraph,
        first: IntArray,
        stop: IntArray,
        orders: Sequence[OpenOrders] = (),
    ) -> None:
        schedule = graph.schedule
        assert schedule.timing is not None
        self.schedule, self.first, self.stop = schedule, first, stop
        self.offsets = graph.offsets.tolist()
        ranges = [
            slice(at + a, at + b) for at, a, b in zip(self.offsets, first, stop, strict=False)
        ]
        self.nodes = np.concatenate([np.arange(len(graph.ranks))[here] for here in ranges])
        self.at = {node: i for i, node in enumerate(self.nodes.tolist())}
        self.rank = graph.ranks[self.nodes]
        self.begin, self._end = map(np.concatenate, (schedule.timing.start, schedule.timing.end))
        self.durations = graph.duration
        self.takes = graph.duration[self.nodes]
        self.flat = np.concatenate(schedule.order)
        self.kind, self.stage, self.microbatch = fields_of(self.flat[self.nodes])
        self.choice = choice_of(schedule.problem, schedule.order)[self.stage, self.microbatch]
        self.classes = self._by_class()
        self._inputs(graph)
        self.waits += [(i, k, 0.0) for i, k in self._by_memory(orders)]

    def ops(self, rank: int) -> range:
        """The ops of a rank."""
        here = np.searchsorted(self.rank, [rank, rank + 1])
        return range(int(here[0]), int(here[1]))

    def opens(self, rank: int) -> bool:
        """Whether the rank's first op is in the window."""
        return bool(self.first[rank] == 0 < self.stop[rank])

    def latest(self, deadlines: Sequence[float]) -> tuple[list[float], list[float]]:
        """When each op of the window, and all those of each rank, end at the latest, so that ranks
        end in time."""
        duration, offsets = self.durations.tolist(), self.offsets
        start = [inf] * len(duration)
        last = dict(zip((end - 1 for end in offsets[1:]), deadlines, strict=True))
        for u in self._behind:
            most = min(last[u] if u in last else start[u + 1], inf)
            for v, delay in self._after[u]:
                most = min(most, start[v] - delay)
            start[u] = most - duration[u]
        ends = [inf] * len(self.nodes)
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
        problem = self.schedule.problem
        stream = np.zeros(problem.microbatches, dtype=np.int64)
        for n, own in enumerate(streams_of(problem)):
            stream[own] = n
        keys = np.stack([self.kind, self.stage, stream[self.microbatch], self.choice], axis=1)
        found: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for i, key in enumerate(keys.tolist()):
            found[tuple(key)].append(i)
        return list(found.values())

    def _inputs(self, graph: ScheduleGraph) -> None:
        """What ops wait for: others of the window, those before it, and for those of it others."""
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
            i, k = self.at.get(u), self.at.get(v)
            if i is not None and k is not None:
                self.waits.append((i, k, delay))
            elif k is not None:
                self.ready[k] = max(self.ready[k], float(self._end[u]) + delay)
            elif i is not None:
                self._leave.append((i, v, delay))
            elif later[u]:
                self._after[u].append((v, delay))
        nodes = np.flatnonzero(later)
        self._behind = nodes[np.lexsort((nodes, self._end[nodes], self.begin[nodes]))][
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
        """Pairs of ops of which the first one comes first, as memory has no room for the other
        order."""
        streams = streams_of(self.schedule.problem)
        number = {j: (n, k) for n, own in enumerate(streams) for k, j in enumerate(own)}
        at: dict[OpClass, dict[int, int]] = defaultdict(dict)
        for i, (kind, s, j) in enumerate(self._names()):
            stream, k = number[j]
            at[OpClass(OpKind(kind), s, stream)][k] = i
        for rank in orders:
            for a, b in rank.pairs():
                apart = rank.ahead(a, b) + 1
                for k, i in at[a].items():
                    if k - apart in at[b]:
                        yield at[b][k - apart], i

    def _names(self) -> Iterator[tuple[int, int, int]]:
        """Kind, stage and microbatch of each op."""
        return zip(self.kind.tolist(), self.stage.tolist(), self.microbatch.tolist(), strict=True)


class WindowOrders:
    """The model of a window, for schedules of cost ``target`` or less."""

    parameters: Mapping[str, object] = PARAMETERS

    def __init__(self, window: ScheduleWindow, target: float) -> None:
        self._window, self.cp = window, cp_model.CpModel()
        self._target, self._literals = target, dict[tuple[int, int], cp_model.IntVar]()
        problem = window.schedule.problem
        self._costs = Costs.of(problem)
        self._zero = float(window.begin[window.nodes].min())
        times = [self._costs.into_f.ravel(), self._costs.into_b.ravel(), window.durations]
        self._ticks = Ticks.of(np.unique(np.concatenate(times)).tolist(), 3 * target, bits=BITS)
        self._takes = [self._ticks.down(t) for t in window.takes.tolist()]
        self._period = problem.objective is Objective.PERIOD
        self._between()
        self._starts: list[cp_model.IntVar] = []
        if any(low > high for low, high in zip(self._low, self._high, strict=True)):
            self.cp.add_bool_or([])
        else:
            self._constrain()
        self.unit = UNIT + len(self._literals) / LITERALS_A_SECOND

    def proves(self, bound: float) -> float:
        """Nothing of the problem."""
        return -inf

    def orders(self, solution: cp_model.CpSolverSolutionCallback) -> Order:
        """The schedule's order, the window as in a solution."""
        flat, values = self._window.flat.copy(), list(map(solution.value, self._starts))
        for rank in range(len(self._window.first)):
            ops = self._window.ops(rank)
            row = sorted(ops, key=lambda i: (values[i], self._takes[i] > 0, i))
            flat[self._window.nodes[ops]] = flat[self._window.nodes[row]]
        return tuple(np.split(flat, self._window.offsets[1:-1]))

    def _ticks_of(self, time: float) -> int:
        """A time in ticks from the window's first op on."""
        return self._ticks.most(min(time - self._zero, 2 * self._target))

    def _deadlines(self) -> list[float]:
        """When each rank ends at the latest; inf where that depends on the window."""
        begins = self._window.begin
        return [
            self._target + float(begins[at]) * self._period if at < end else inf
            for at, end in pairwise(self._window.offsets)
        ]

    def _between(self) -> None:
        """Earliest and latest starts, and which op surely runs before which."""
        window, takes = self._window, self._takes
        deadlines = [
            inf if self._period and window.opens(rank) else end
            for rank, end in enumerate(self._deadlines())
        ]
        ends, closes = window.latest(deadlines)
        self._closes = [self._ticks_of(end) for end in closes]
        ready = (self._ticks.down(time - self._zero) for time in window.ready)
        self._low = low = list(map(max, ready, [0] * len(takes)))
        latest = (
            min(self._ticks_of(end), self._closes[rank])
            for end, rank in zip(ends, window.rank.tolist(), strict=True)
        )
        self._high = high = [end - t for end, t in zip(latest, takes, strict=True)]
        self._waits = [(i, k, self._ticks.down(delay)) for i, k, delay in window.waits]
        begin = window.begin[window.nodes].tolist()
        forward = sorted(self._waits, key=lambda wait: (begin[wait[1]], wait[1]))
        backward = sorted(self._waits, key=lambda wait: (begin[wait[0]], wait[0]), reverse=True)
        for i, k, delay in forward:
            low[k] = max(low[k], low[i] + takes[i] + delay)
        sure = np.eye(len(takes), dtype=np.bool_)
        for i, k, delay in backward:
            high[i] = min(high[i], high[k] - delay - takes[i])
            sure[i] |= sure[k]
        sure |= np.add(low, takes)[None, :] > np.array(high)[:, None]
        np.fill_diagonal(sure, val=False)
        self._sure = sure

    def _constrain(self) -> None:
        cp, window = self.cp, self._window
        spans = zip(self._low, self._high, strict=True)
        self._starts = [cp.new_int_var(low, high, "") for low, high in spans]
        for i, k, delay in self._waits:
            cp.add(self._starts[k] >= self._starts[i] + self._takes[i] + delay)
        now = map(self._ticks_of, window.begin[window.nodes].tolist())
        for start, low, high, at in zip(self._starts, self._low, self._high, now, strict=True):
            cp.add_hint(start, min(max(low, at), high))
        self._last = [cp.new_int_var(0, most, "") for most in self._closes]
        memory = held(window.schedule.problem, window.schedule.order)
        for rank, row in enumerate(memory):
            if len(ops := window.ops(rank)):
                self._of_rank(rank, ops, row)
        self._implications()
        if self._period:
            for rank in filter(window.opens, range(len(memory))):
                self._from_its_first(rank)

    def _of_rank(self, rank: int, ops: range, memory: FloatArray) -> None:
        cp, window, starts, takes = self.cp, self._window, self._starts, self._takes
        cp.add_no_overlap(cp.new_fixed_size_interval_var(starts[i], takes[i], "") for i in ops)
        if self._period and window.opens(rank):
            self._begins_with(ops)
        kinds = window.kind[ops]
        for i in ops:
            cp.add(self._last[rank] >= starts[i] + takes[i])
        span = np.array(takes)[ops] * (kinds != _W)
        sure = self._sure[ops.start : ops.stop, ops.start : ops.stop]
        memories = self._memories(rank, memory)
        ready, takers = min(self._low[i] for i in ops), kinds == _F
        takers |= kinds == _R
        open_pairs = ~(sure | sure.T)
        np.fill_diagonal(open_pairs, val=False)
        after = span + self._weights_after(ops)
        for n, i in enumerate(ops):
            if kinds[n] == _W:
                continue
            before = sure[:, n]
            done, left = LiteralSum(int(span[before].sum())), LiteralSum(int(after[~before].sum()))
            sums = [LiteralSum(int(change[before].sum())) for change, _ in memories if takers[n]]
            for m in np.flatnonzero(open_pairs[:, n]).tolist():
                if kinds[m] == _W:
                    if takers[n]:
                        self._add(sums, memories, m, self._weight_before(ops[m], i))
                    continue
                literal = self._before(ops[m], i)
                done.add(literal, int(span[m]))
                left.add(literal, -int(after[m]))
                self._add(sums, memories, m, literal)
            cp.add(starts[i] >= ready + done.total)
            cp.add(self._last[rank] >= starts[i] + left.total)
            for total, (change, room) in zip(sums, memories, strict=False):
                cp.add(total.total + int(change[n]) <= room)

    @staticmethod
    def _add(
        sums: Sequence[LiteralSum],
        memories: Sequence[tuple[IntArray, int]],
        m: int,
        literal: cp_model.LiteralT,
    ) -> None:
        for total, (change, _) in zip(sums, memories, strict=False):
            total.add(literal, int(change[m]))

    def _memories(self, rank: int, memory: FloatArray) -> list[tuple[IntArray, int]]:
        """What each op changes, in whole sizes, and the room for it: of all memory, and of that
        which waits for a B alone."""
        window, limit = self._window, float(self._costs.limit[rank]) * (1 + ROUNDING)
        if limit == inf:
            return []
        first, stop = int(window.first[rank]), int(window.stop[rank])
        changed = [np.diff(memory, prepend=0.0)]
        if not pulled(window.schedule.order):
            kind, stage, microbatch = fields_of(window.schedule.order[rank])
            m_b = np.broadcast_to(
                self._costs.m_b.reshape(len(self._costs.m_b), -1), self._costs.owner.shape
            )
            sign = (kind == _F) * 1.0 - ((kind == _B) | (kind == _BW))
            changed.append(sign * m_b[stage, microbatch])
        sizes = Ticks.of(np.abs(np.concatenate(changed)).tolist(), limit, bits=MEMORY_BITS)
        return [
            (
                np.array(
                    [int(np.sign(c)) * sizes.down(abs(c)) for c in change[first:stop].tolist()]
                ),
                floor((limit - float(change[:first].sum())) * sizes.per_unit),
            )
            for change in changed
        ]

    def _weights_after(self, ops: range) -> IntArray:
        """How long the W takes of each B, where both are in the window."""
        window, found = self._window, np.zeros(len(ops), dtype=np.int64)
        names = list(zip(window.stage[ops].tolist(), window.microbatch[ops].tolist(), strict=True))
        kinds = window.kind[ops].tolist()
        weights = {name: i for i, kind, name in zip(ops, kinds, names, strict=True) if kind == _W}
        for n, (kind, name) in enumerate(zip(kinds, names, strict=True)):
            if kind == _B and name in weights:
                found[n] = self._takes[weights[name]]
        return found

    def _begins_with(self, ops: range) -> None:
        """Keeps the rank's first op, which waits for its input alone."""
        first, *others = ops
        self._sure[first, others], self._sure[others, first] = True, False
        for i in others:
            self.cp.add(self._starts[i] >= self._starts[first] + self._takes[first])
        inputs = [(i, delay) for i, k, delay in self._waits if k == first]
        for i, delay in inputs:
            self.cp.add(self._starts[first] == self._starts[i] + self._takes[i] + delay)
        if not inputs:
            self.cp.add(self._starts[first] == self._low[first])

    def _from_its_first(self, rank: int) -> None:
        """The rank's last op ends in time, as counted from its first one."""
        deadlines = [inf] * len(self._closes)
        deadlines[rank] = self._target + self._zero
        ends, closes = self._window.latest(deadlines)
        begins = self._starts[self._window.ops(rank)[0]]
        for i, end in enumerate(ends):
            if end < inf:
                self.cp.add(self._starts[i] + self._takes[i] <= begins + self._ticks_of(end))
        for last, end in zip(self._last, closes, strict=True):
            if end < inf:
                self.cp.add(last <= begins + self._ticks_of(end))

    def _before(self, a: int, b: int) -> cp_model.LiteralT:
        """Whether one op runs before another, which is open."""
        if a > b:
            return ~self._before(b, a)
        if (a, b) not in self._literals:
            literal = self._literals[a, b] = self.cp.new_bool_var("")
            one, other = self._starts[a], self._starts[b]
            self.cp.add(other >= one + self._takes[a]).only_enforce_if(literal)
            self.cp.add(one >= other + self._takes[b]).only_enforce_if(~literal)
        return self._literals[a, b]

    def _weight_before(self, w: int, b: int) -> cp_model.IntVar:
        """A literal that only a W which has run before can fulfil."""
        if (w, b) not in self._literals:
            literal = self._literals[w, b] = self.cp.new_bool_var("")
            ends = self._starts[w] + self._takes[w]
            self.cp.add(self._starts[b] >= ends).only_enforce_if(literal)
        return self._literals[w, b]

    def _implications(self) -> None:
        """What runs before an op runs before the next of its class; and what is after, after."""
        after = {i: k for each in self._window.classes for i, k in pairwise(each)}
        for (a, b), literal in self._literals.items():
            if (other := self._literals.get((after.get(a, -1), b))) is not None:
                self.cp.add_implication(other, literal)
            if (other := self._literals.get((a, after.get(b, -1)))) is not None:
                self.cp.add_implication(literal, other)
