"""The orders of the ops in a window of a schedule, as a CP-SAT model (:mod:`.schedule_window`).

All ops outside the window keep their order; so do the ops of each class.

**Literals.** Whether an op runs before another one of its rank, unless dependencies or earliest and
latest times decide that. A literal of a W and an F or R (which take memory) says that the W has run
before if it is true, and nothing if it is false. W's have no other literals.

**Times.** Dependencies and the orders of classes hold, and no two ops of a rank overlap. The ops
before an op fit between the rank's last op before the window and its start, those after it between
its end and the rank's first op after the window.

**Recomputation.** A microbatch with its F and B in the window may be recomputed or stay. An R that
may be left out takes time and memory only if it runs.

**Memory.** At each F and R the memory held is within the rank's limit: once all of it, and once
only that of microbatches that wait for their B, whose sizes are often multiples of one size. Orders
that memory decides are also constraints on times (:mod:`.rank_orders`).

**Period.** A rank whose first op is in the window keeps it as its first op, and its span begins
there.

Any solution is an order to be simulated. If there is none, nothing is proven, as the rest is fixed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import floor, inf

import numpy as np
from ortools.sat.python import cp_model

from pipeloom.ir.cost.remat import RECOMPUTED, held, pulled
from pipeloom.ir.model.ops import FloatArray, IntArray, OpKind, fields_of
from pipeloom.ir.model.problem import Objective

from ...core.options import Order
from ...core.tolerances import ROUNDING
from ..integer_time import Ticks
from .general_interleaving import MEMORY_BITS, PARAMETERS, LiteralSum, unit_of
from .interleaving import BITS
from .schedule_window import ScheduleWindow

_F, _B, _W, _BW, _R = OpKind.F, OpKind.B, OpKind.W, OpKind.BW, OpKind.R


class WindowOrders:
    """The model of a window, for schedules of cost ``target`` or less."""

    parameters: Mapping[str, object] = PARAMETERS

    def __init__(self, window: ScheduleWindow, target: float) -> None:
        self._window, self.cp = window, cp_model.CpModel()
        self._target, self._literals = target, dict[tuple[int, int], cp_model.IntVar]()
        problem = window.schedule.problem
        self._zero, costs = float(window.begin.min()), window.costs
        times = [costs.into_f.ravel(), costs.into_b.ravel(), window.durations, window.takes]
        self._ticks = Ticks.of(np.unique(np.concatenate(times)).tolist(), 3 * target, bits=BITS)
        self._whole = [self._ticks.down(t) for t in window.takes.tolist()]
        self._takes = [0 if i in window.optional else t for i, t in enumerate(self._whole)]
        self._runs = {i: self.cp.new_bool_var("") for i in window.optional}
        self._period = problem.objective is Objective.PERIOD
        ranks = range(len(window.first))
        self._opening = [rank for rank in ranks if self._period and window.opens(rank)]
        self._between()
        self._starts: list[cp_model.IntVar] = []
        spans = [*zip(self._low, self._high, strict=True), *((0, most) for most in self._closes)]
        if any(low > high for low, high in spans):
            self.cp.add_bool_or([])
        else:
            self._constrain()
        self.unit = unit_of(len(self._literals))

    def proves(self, bound: float) -> float:
        """-inf: a bound of this model proves nothing about the problem."""
        return -inf

    def orders(self, solution: cp_model.CpSolverSolutionCallback) -> Order:
        """The schedule's order, with the window as in a solution."""
        window, values, rows = self._window, list(map(solution.value, self._starts)), []
        left_out = {i for i, runs in self._runs.items() if not solution.value(runs)}
        for rank, row in enumerate(window.schedule.order):
            ops = [i for i in window.ops(rank) if i not in left_out]
            ops.sort(key=lambda i: (values[i], self._whole[i] > 0, i))
            first, stop = window.first[rank], window.stop[rank]
            rows.append(np.concatenate([row[:first], window.packed[ops], row[stop:]]))
        return tuple(rows)

    def _ends(self, i: int) -> cp_model.LinearExpr:
        if i in self._runs:
            return self._starts[i] + self._whole[i] * self._runs[i]
        return self._starts[i] + self._takes[i]

    def _ticks_of(self, time: float) -> int:
        """A time in ticks, from the window's first op on."""
        return self._ticks.most(min(time - self._zero, 2 * self._target))

    def _deadlines(self) -> list[float]:
        """When each rank must end; inf if that depends on the window."""
        begins, found = self._window.begins, []
        for rank, (at, end) in enumerate(pairwise(self._window.offsets)):
            known = at < end and rank not in self._opening
            found.append(self._target + float(begins[at]) * self._period if known else inf)
        return found

    def _between(self) -> None:
        """Compute earliest and latest starts, and the pairs of ops whose order they fix."""
        window, takes = self._window, self._takes
        ends, closes = window.latest(self._deadlines())
        self._closes = [self._ticks_of(end) for end in closes]
        ready = (self._ticks.down(time - self._zero) for time in window.ready)
        self._low = low = list(map(max, ready, [0] * len(takes)))
        latest = (
            min(self._ticks_of(end), self._closes[rank])
            for end, rank in zip(ends, window.rank.tolist(), strict=True)
        )
        self._high = high = [end - t for end, t in zip(latest, takes, strict=True)]
        self._waits = [(i, k, self._ticks.down(delay)) for i, k, delay in window.waits]
        begin = window.begin.tolist()
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
            cp.add(self._starts[k] >= self._ends(i) + delay)
        now = map(self._ticks_of, window.begin.tolist())
        for start, low, high, at in zip(self._starts, self._low, self._high, now, strict=True):
            cp.add_hint(start, min(max(low, at), high))
        self._last = [cp.new_int_var(0, most, "") for most in self._closes]
        memory = held(window.schedule.problem, window.schedule.order)
        for rank, row in enumerate(memory):
            if len(ops := window.ops(rank)):
                self._of_rank(rank, ops, row)
        self._implications()
        for rank in self._opening:
            self._from_its_first(rank)

    def _of_rank(self, rank: int, ops: range, memory: FloatArray) -> None:
        cp, window, starts, takes = self.cp, self._window, self._starts, self._takes
        cp.add_no_overlap(map(self._interval, ops))
        if rank in self._opening:
            self._begins_with(ops)
        kinds = window.kind[ops]
        weights = (kinds == _W).tolist()
        takers = ((kinds == _F) | (kinds == _R)).tolist()
        for i in ops:
            cp.add(self._last[rank] >= starts[i] + takes[i])
        span = np.array(takes)[ops] * (kinds != _W)
        sure = self._sure[ops.start : ops.stop, ops.start : ops.stop]
        memories, reliefs = self._memories(rank, memory)
        ready = min(self._low[i] for i in ops)
        open_pairs = ~(sure | sure.T)
        np.fill_diagonal(open_pairs, val=False)
        after = span + self._weights_after(ops)
        for n, i in enumerate(ops):
            if weights[n]:
                continue
            before = sure[:, n]
            done, left = LiteralSum(int(span[before].sum())), LiteralSum(int(after[~before].sum()))
            sums = [LiteralSum(int(change[before].sum())) for change, _ in memories if takers[n]]
            for m in np.flatnonzero(open_pairs[:, n]).tolist():
                if weights[m]:
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
                self._relieve(total, i, reliefs)
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

    def _memories(
        self, rank: int, memory: FloatArray
    ) -> tuple[list[tuple[IntArray, int]], dict[int, int]]:
        """The change of memory by each op, and the room for it, as integers.

        Returns such a pair for each of the two constraints of *Memory* above, and the memory that
        each optional R releases.
        """
        window, costs = self._window, self._window.costs
        limit = float(costs.limit[rank]) * (1 + ROUNDING)
        if limit == inf:
            return [], {}
        first, stop, ops = int(window.first[rank]), int(window.stop[rank]), window.ops(rank)
        held_before = float(memory[first - 1]) if first else 0.0
        change = np.zeros(len(ops))
        change[: stop - first] = np.diff(memory[first:stop], prepend=held_before)
        freed = {}
        for i, f in window.optional.items():
            if i in ops:
                stage = window.stage[i]
                freed[i] = float(costs.m_b[stage] - costs.kept[RECOMPUTED, stage])
                change[f - ops.start], change[i - ops.start] = costs.m_b[stage], 0.0
        changed = [(change, held_before)]
        if not pulled(window.schedule.order) and not freed:
            kind, stage, microbatch = fields_of(window.schedule.order[rank])
            m_b = np.broadcast_to(costs.m_b.reshape(len(costs.m_b), -1), costs.owner.shape)
            waiting = m_b[stage, microbatch] * ((kind == _F) * 1.0 - (kind == _B) - (kind == _BW))
            changed.append((waiting[first:stop], float(waiting[:first].sum())))
        amounts = np.abs(np.concatenate([part for part, _ in changed])).tolist()
        sizes = Ticks.of([*amounts, *freed.values()], limit, bits=MEMORY_BITS)
        found = [
            (
                np.array([int(np.sign(c)) * sizes.down(abs(c)) for c in part.tolist()]),
                floor((limit - before) * sizes.per_unit),
            )
            for part, before in changed
        ]
        return found, {i: sizes.down(amount) for i, amount in freed.items()}

    def _relieve(self, total: LiteralSum, taker: int, reliefs: Mapping[int, int]) -> None:
        """Subtract what is not held at ``taker`` by microbatches whose optional R comes later."""
        for i, amount in reliefs.items():
            f = self._window.optional[i]
            if f == taker:
                total.add(self._runs[i], -amount)
            elif taker != i and not (self._sure[taker, f] or self._sure[i, taker]):
                relieved = self.cp.new_bool_var("")
                self.cp.add_implication(relieved, self._runs[i])
                for a, b in ((f, taker), (taker, i)):
                    if not self._sure[a, b]:
                        self.cp.add_implication(relieved, self._before(a, b))
                total.add(relieved, -amount)

    def _interval(self, i: int) -> cp_model.IntervalVar:
        if i in self._runs:
            return self.cp.new_optional_fixed_size_interval_var(
                self._starts[i], self._whole[i], self._runs[i], ""
            )
        return self.cp.new_fixed_size_interval_var(self._starts[i], self._takes[i], "")

    def _weights_after(self, ops: range) -> IntArray:
        """The time of the W of each B, if both are in the window; else 0."""
        window, found = self._window, np.zeros(len(ops), dtype=np.int64)
        names = list(zip(window.stage[ops].tolist(), window.microbatch[ops].tolist(), strict=True))
        kinds = window.kind[ops].tolist()
        weights = {name: i for i, kind, name in zip(ops, kinds, names, strict=True) if kind == _W}
        for n, (kind, name) in enumerate(zip(kinds, names, strict=True)):
            if kind == _B and name in weights:
                found[n] = self._takes[weights[name]]
        return found

    def _begins_with(self, ops: range) -> None:
        """Keep the rank's first op, which starts as soon as its input arrives."""
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
        """Add that the rank's span, counted from its first op, is at most the target."""
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
        """The literal that one op runs before another, an open pair."""
        if a > b:
            return ~self._before(b, a)
        if (a, b) not in self._literals:
            literal = self._literals[a, b] = self.cp.new_bool_var("")
            one, other = self._starts[a], self._starts[b]
            self.cp.add(other >= self._ends(a)).only_enforce_if(literal)
            self.cp.add(one >= self._ends(b)).only_enforce_if(~literal)
        return self._literals[a, b]

    def _weight_before(self, w: int, b: int) -> cp_model.IntVar:
        """A literal that can only be true if the W has run before."""
        if (w, b) not in self._literals:
            literal = self._literals[w, b] = self.cp.new_bool_var("")
            ends = self._starts[w] + self._takes[w]
            self.cp.add(self._starts[b] >= ends).only_enforce_if(literal)
        return self._literals[w, b]

    def _implications(self) -> None:
        """Add: an op that runs before another also runs before the next of its class, and so on."""
        after = {i: k for each in self._window.classes for i, k in pairwise(each)}
        for (a, b), literal in self._literals.items():
            if (other := self._literals.get((after.get(a, -1), b))) is not None:
                self.cp.add_implication(other, literal)
            if (other := self._literals.get((a, after.get(b, -1)))) is not None:
                self.cp.add_implication(literal, other)
