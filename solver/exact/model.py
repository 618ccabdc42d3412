"""The CP-SAT model of an instance: the starts of all ops, and literals for undecided pairs of ops.

**Literals.** Of two F's, B's or R's of one rank: whether the first runs before the second, unless
that is known or follows from earliest and latest times. Of a W and an F or R (which take memory):
the W has run before if the literal is true; nothing is known if it is false. W's have no other
literals. If a runs before b, then a runs before the next op of b's class, and the op before a in
its class runs before b.

**Times.** Waits hold, and no two ops of a rank overlap. An op starts no earlier than the start of
the rank's first op plus the time of all ops before it. From the op's start on there is time, before
the rank must end, for all ops that do not run before it, where W's count with their B's. A rank
must end within the cost, counted from its first op (period) or from 0 (makespan), or without an
objective as the latest ends say.

**Memory.** At each F and R, the memory that the ops before it have left held, by literals, plus its
own is within the limit. Memory grows only at F's and R's.

**R's that may be left out** take time and memory only if they run.

**Ticks.** Times are whole ticks, rounded down unless they are decimals. The starts of a schedule,
rounded down too, satisfy all of the above, because floor(x + y) >= floor(x) + floor(y); a period
grows by less than one tick. So if the model has no solution of cost T plus one tick
(:meth:`Ticks.most`), no schedule costs T or less. Changes of memory are rounded down, too. If the
objective is the period, the rank of stage 0 starts at 0, and its last B comes after every rank's
first op: all ops end by twice the cost.

A schedule starts each op as soon as its order allows, whereas a solution may start a rank's first
op later. So the orders of solutions are timed by the simulator.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from ortools.sat.python import cp_model

from pipeloom.ir.model.ops import FloatArray, IntArray
from pipeloom.ir.model.problem import Objective

from ..core.options import Order
from .instance import B, BoolArray, F, Instance, R, W, undecided
from .integer_time import Ticks

Time = cp_model.LinearExpr | int
BITS, MEMORY_BITS = 28, 40  # bits of times, and of sizes, that are not decimals
# seconds of work per second of CP-SAT's deterministic time: UNIT plus literals / LITERALS_A_SECOND
UNIT, LITERALS_A_SECOND = 5.0, 2000
PARAMETERS = {
    "linearization_level": 0,
    "cp_model_presolve": False,
    "cp_model_probing_level": 0,  # takes longer than the search
    # redundant with the literals: ten times faster
    "use_precedences_in_disjunctive_constraint": False,
    "use_sat_inprocessing": False,
}


class LiteralSum:
    """An integer constant plus a sum of literals with integer weights."""

    def __init__(self, constant: int) -> None:
        self.constant = constant
        self.literals: list[cp_model.LiteralT] = []
        self.weights: list[int] = []

    def add(self, literal: cp_model.LiteralT, weight: int) -> None:
        if weight:
            self.literals.append(literal)
            self.weights.append(weight)

    @property
    def total(self) -> cp_model.LinearExpr:
        return cp_model.LinearExpr.weighted_sum(self.literals, self.weights) + self.constant


class OrderModel:
    """The CP-SAT model of ``instance``, whose solutions are orders that cost ``low`` to ``high``.

    ``minimize``: whether CP-SAT minimizes the cost; if False, it ends with the first solution.
    ``hint``: the starts of the ops with which the search begins, shape (N,), or None.
    """

    def __init__(
        self,
        instance: Instance,
        low: float,
        high: float,
        *,
        minimize: bool = False,
        hint: FloatArray | None = None,
    ) -> None:
        self.instance, self.cp = instance, cp_model.CpModel()
        self.ticks = Ticks.of(np.unique(instance.times).tolist(), 2 * high, bits=BITS)
        self.most = self.ticks.most(high)
        self.cost = self.cp.new_int_var(min(self.ticks.least(low), self.most), self.most, "cost")
        self.takes = [self.ticks.down(t) for t in instance.takes.tolist()]
        self.runs = {i: self.cp.new_bool_var("") for i in instance.optional}
        self._waits = [(i, k, self.ticks.down(gap)) for i, k, gap in instance.waits]
        self._literals: dict[tuple[int, int], cp_model.IntVar] = {}
        self.low, self.high = self._windows(high)
        self.starts: list[cp_model.IntVar] = []
        if any(low > high for low, high in zip(self.low, self.high, strict=True)):
            self.cp.add_bool_or([])
        else:
            self._constrain()
            if hint is not None:
                self._suggest(hint.tolist())
        if minimize:
            self.cp.minimize(self.cost)
        self.unit = UNIT + len(self._literals) / LITERALS_A_SECOND

    def proves(self, bound: float) -> float:
        """Convert a lower bound on the cost in the model to one on the cost of schedules.

        ``bound`` is in ticks, the result in the profile's unit of time. If times are rounded to
        ticks, the result is one tick lower, as the cost in the model may be up to a tick above the
        cost of the schedule.
        """
        return (bound - (not self.ticks.exact)) / self.ticks.per_unit

    @property
    def above(self) -> float:
        """The lower bound on the cost that is proven if CP-SAT finds the model infeasible."""
        return self.proves(self.most + 1)

    def order(self, solution: cp_model.CpSolverSolutionCallback) -> Order:
        """The order in a solution: for each rank, its packed ops sorted by start.

        It includes the fixed ops around the instance. It may be invalid if some ops have zero
        duration.
        """
        instance, value, rows = self.instance, list(map(solution.value, self.starts)), []
        left_out = {i for i, runs in self.runs.items() if not solution.value(runs)}
        for rank, ops in enumerate(instance.rank_ops):
            own = [i for i in ops.tolist() if i not in left_out]
            own.sort(key=lambda i: (value[i], self.takes[i] > 0, i))
            before, after = instance.around[rank] if instance.around else (ops[:0], ops[:0])
            rows.append(np.concatenate([before, instance.packed[own], after]))
        return tuple(rows)

    def _windows(self, cost: float) -> tuple[list[int], list[int]]:
        """The earliest and the latest start of each op in ticks, as two lists of length N.

        They follow from the waits, from the instance's earliest starts and latest ends, and from
        ``cost``, the maximum cost.
        """
        instance, takes, optional = self.instance, self.takes, self.instance.optional
        horizon = (1 if instance.objective is Objective.MAKESPAN else 2) * self.most
        late = sum(np.array(takes)[instance.kind == W].tolist()) if instance.until is B else 0
        ends = (
            horizon + late if math.isinf(due) else self.ticks.most(min(due, 2 * cost))
            for due in instance.due.tolist()
        )
        low = [max(0, self.ticks.down(time)) for time in instance.ready.tolist()]
        high = [end - (0 if i in optional else takes[i]) for i, end in enumerate(ends)]
        for i, k, gap in sorted(self._waits):
            low[k] = max(low[k], low[i] + (0 if i in optional else gap))
        for i, k, gap in sorted(self._waits, reverse=True):
            high[i] = min(high[i], high[k] - (0 if i in optional else gap))
        return low, high

    def _constrain(self) -> None:
        cp, instance = self.cp, self.instance
        windows = zip(self.low, self.high, strict=True)
        self.starts = [cp.new_int_var(low, high, "") for low, high in windows]
        for i, k, gap in self._waits:
            cp.add(self.starts[k] >= (self._end(i) if i in self.runs else self.starts[i] + gap))
        at_once = [cp.new_bool_var("") for _ in instance.entries]
        for i, literal in zip(instance.entries, at_once, strict=True):
            cp.add(self.starts[i] == 0).only_enforce_if(literal)
        if at_once:
            cp.add_bool_or(at_once)
        for rank, ops in enumerate(instance.rank_ops):
            if len(ops):
                _RankModel(self, rank, ops.tolist()).constrain()
        self._implications()

    def _suggest(self, hint: Sequence[float]) -> None:
        for start, low, high, time in zip(self.starts, self.low, self.high, hint, strict=True):
            self.cp.add_hint(start, min(max(low, self.ticks.down(time)), high))

    def _end(self, i: int) -> cp_model.LinearExpr:
        return self.starts[i] + self.takes[i] * self.runs.get(i, 1)

    def before(self, a: int, b: int) -> cp_model.LiteralT:
        """The literal that is true if op a runs before op b, and false if b runs before a.

        The literal is created if the model does not contain it. The ops are on one rank, and
        neither is a W.
        """
        if a > b:
            return ~self.before(b, a)
        if (a, b) not in self._literals:
            literal = self._literals[a, b] = self.cp.new_bool_var("")
            self.cp.add(self.starts[b] >= self._end(a)).only_enforce_if(literal)
            self.cp.add(self.starts[a] >= self._end(b)).only_enforce_if(~literal)
        return self._literals[a, b]

    def weight_before(self, w: int, b: int) -> cp_model.IntVar:
        """The literal that may be true only if the W ``w`` ends before op ``b`` starts.

        The literal is created if the model does not contain it. Both ops are given by their
        numbers.
        """
        if (w, b) not in self._literals:
            literal = self._literals[w, b] = self.cp.new_bool_var("")
            self.cp.add(self.starts[b] >= self._end(w)).only_enforce_if(literal)
        return self._literals[w, b]

    def _implications(self) -> None:
        after = {i: k for row in self.instance.classes for i, k in pairwise(row)}
        for (a, b), literal in list(self._literals.items()):
            for pair, follows in (((after.get(a), b), False), ((a, after.get(b)), True)):
                other = self._literal(*pair)
                if other is not None:
                    self.cp.add_implication(*((literal, other) if follows else (other, literal)))

    def _literal(self, a: int | None, b: int | None) -> cp_model.LiteralT | None:
        """The literal for op a before op b; None if the model has none, or if a or b is None."""
        if a is None or b is None:
            return None
        if (a, b) in self._literals:
            return self._literals[a, b]
        weight = W in {self.instance.kind[a], self.instance.kind[b]}
        return None if weight or (b, a) not in self._literals else ~self._literals[b, a]


class _RankModel:
    """The part of a model that is about one rank. ``ops``: the numbers of its n ops, ascending."""

    def __init__(self, model: OrderModel, rank: int, ops: list[int]) -> None:
        self._model, self._cp, self._ops, instance = model, model.cp, ops, model.instance
        self._at = {i: n for n, i in enumerate(ops)}
        kind = instance.kind[ops]
        self._weight, self._taker = kind == W, (kind == F) | (kind == R)
        self._takes = np.array([0 if i in model.runs else model.takes[i] for i in ops])
        low, high = (np.array(times)[ops] for times in (model.low, model.high))
        self._known = instance.known(rank) | (high[:, None] < (low + self._takes)[None, :])
        np.fill_diagonal(self._known, val=False)
        self._memory = [self._in_bytes(*row) for row in instance.memory.get(rank, ())]
        self._begins = self._first(low)
        counted = ~self._weight if instance.until is B else np.full(len(ops), fill_value=True)
        self._counted = counted.tolist()
        self._ends = self._last(int((high + self._takes)[counted].max(initial=0)))

    def constrain(self) -> None:
        """Add all constraints of the rank."""
        model, cp = self._model, self._cp
        cp.add_no_overlap(map(self._interval, self._ops))
        span = self._takes * ~self._weight
        after = span + self._weights_after()
        pairs = undecided(self._known)
        for n, i in enumerate(self._ops):
            if self._counted[n]:
                cp.add(self._ends >= model.starts[i] + int(self._takes[n]))
            if not self._weight[n]:
                self._constrain_op(n, span, after, pairs[:, n])

    def _constrain_op(self, n: int, span: IntArray, after: IntArray, pairs: BoolArray) -> None:
        """Add the constraints on one F, B or R: on the time before and after it, and on memory.

        Memory is constrained at an F or R only. ``n``: the index of this op among the rank's ops.
        The arrays have an entry for each of the rank's ops: ``span``, the time in ticks for which
        that op counts if it runs before this one; ``after``, the time for which it counts if it
        does not; ``pairs``, whether its order with this one is unknown.
        """
        model, start, before = self._model, self._model.starts[self._ops[n]], self._known[:, n]
        done, left = LiteralSum(int(span[before].sum())), LiteralSum(int(after[~before].sum()))
        rows = self._memory if self._taker[n] else ()
        held = [LiteralSum(int(row.change[before].sum() + row.change[n])) for row in rows]
        for m in np.flatnonzero(pairs if rows else pairs & ~self._weight).tolist():
            if self._weight[m]:
                literal: cp_model.LiteralT = model.weight_before(self._ops[m], self._ops[n])
                done.add(literal, int(self._takes[m]))
            else:
                literal = model.before(self._ops[m], self._ops[n])
                done.add(literal, int(span[m]))
                left.add(literal, -int(after[m]))
            for total, row in zip(held, rows, strict=True):
                total.add(literal, int(row.change[m]))
        self._cp.add(start >= self._begins + done.total)
        self._cp.add(self._ends >= start + left.total)
        for total, row in zip(held, rows, strict=True):
            self._relieve(total, n, row.unit)
            self._cp.add(total.total <= row.room)

    def _relieve(self, held: LiteralSum, taker: int, unit: Ticks) -> None:
        """Subtract from ``held`` the memory that optional R's save at one op, if they run.

        ``held``: the memory held at the op. ``taker``: the index of the op among the rank's ops. An
        R saves memory there if its F runs before the op or is the op, and the R runs after it.
        ``unit``: the ticks in which memory is counted.
        """
        model = self._model
        for i, (f, amount) in model.instance.optional.items():
            again, first, less = self._at.get(i), self._at.get(f), -unit.down(amount)
            if again is None or first is None or again == taker:
                continue
            if first == taker:
                held.add(model.runs[i], less)
            elif not (self._known[taker, first] or self._known[again, taker]):
                relieved = self._cp.new_bool_var("")
                self._cp.add_implication(relieved, model.runs[i])
                for a, b in ((first, taker), (taker, again)):
                    if not self._known[a, b]:
                        literal = model.before(self._ops[a], self._ops[b])
                        self._cp.add_implication(relieved, literal)
                held.add(relieved, less)

    def _interval(self, i: int) -> cp_model.IntervalVar:
        model = self._model
        if i in model.runs:
            return self._cp.new_optional_fixed_size_interval_var(
                model.starts[i], model.takes[i], model.runs[i], ""
            )
        return self._cp.new_fixed_size_interval_var(model.starts[i], model.takes[i], "")

    def _first(self, low: IntArray) -> Time:
        """A time in ticks, at most the start of the rank's first op: a variable or a constant.

        ``low``: the earliest start of each of the rank's ops.
        """
        firsts = np.flatnonzero(~self._known.any(axis=0)).tolist()
        if len(firsts) == 1:
            return self._model.starts[self._ops[firsts[0]]]
        if self._model.instance.objective is not Objective.PERIOD:
            return int(low.min())
        begins = self._cp.new_int_var(0, 2 * self._model.most, "")
        for n in firsts:
            self._cp.add(begins <= self._model.starts[self._ops[n]])
        return begins

    def _last(self, latest: int) -> Time:
        """The time in ticks by which the rank must end.

        ``latest``: the result if there is no objective; otherwise the cost determines it.
        """
        objective = self._model.instance.objective
        if objective is None:
            return latest
        return self._model.cost + (self._begins if objective is Objective.PERIOD else 0)

    def _weights_after(self) -> IntArray:
        """For each of the rank's ops, the time in ticks of its W if it is a B, else 0, shape (n,).

        It is also 0 if the W is not in the instance, or if spans of ranks do not include W's.
        """
        found, weight_of = np.zeros(len(self._ops), dtype=np.int64), self._model.instance.weight_of
        for n, i in enumerate(self._ops):
            w = self._at.get(weight_of.get(i, -1))
            if w is not None and self._counted[w]:
                found[n] = self._takes[w]
        return found

    @staticmethod
    def _in_bytes(change: FloatArray, limit: float) -> _Memory:
        unit = Ticks.of(np.abs(change).tolist(), float(np.abs(change).sum()), bits=MEMORY_BITS)
        whole = np.array([unit.down(amount) for amount in change.tolist()])
        return _Memory(whole, math.floor(limit * unit.per_unit), unit)


class _Memory(NamedTuple):
    """A memory constraint of a rank, in ticks of memory.

    ``change``: the change of memory by each of the rank's ops, shape (n,). ``room``: the limit.
    ``unit``: the size of the ticks.
    """

    change: IntArray
    room: int
    unit: Ticks
