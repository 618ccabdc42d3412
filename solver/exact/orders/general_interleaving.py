"""All orders with several stages per rank, or two directions, as a CP-SAT model.

The counterpart of :mod:`.interleaving` for any map of stages to ranks. Classes, streams and open
pairs are defined in :mod:`.rank_orders`.

**Literals.** x(a, i, b, j) says that a(i) runs before b(j), for classes a, b of F's and B's. It
implies x(a, i-1, b, j) and x(a, i, b, j+1). A literal of a W and an F says that the W has run
before if it is true, and nothing if it is false: only W's that memory needs are ordered.

**Times.** The starts of all ops. Dependencies and the order of each class hold, and no two ops of a
rank overlap. Some op starts at 0.

**Memory.** At each F, the sum of M_B and M_W of earlier ops that have not been released, by
literals, is within the limit. Only F's take memory.

**Span.** An op starts no earlier than the rank's first op plus the time of all ops before it. From
its start on, there is time within the cost for all ops that do not run before it, W's with their
B's (period: the cost counts from the rank's first op; makespan: from 0).

If a BW is faster than its B and W, the times are those of :func:`...core.relaxations.unfused`, a
relaxation.

There is no objective: the model is refuted, or any solution is a schedule to start from.

Times and sizes are integers, rounded down, as in :mod:`.interleaving`: if the model has no solution
of cost T plus one tick, no schedule costs T or less. A rank's first op starts before the end of
rank 0's span, so all ops end within twice the cost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from ortools.sat.python import cp_model

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.model.ops import IntArray, Op, OpKind, pack
from pipeloom.ir.model.problem import Objective, Problem

from ...core.relaxations import unfused
from ...core.streams import streams_of
from ...core.tolerances import ROUNDING
from ..integer_time import Ticks
from .interleaving import BITS, TickModel
from .rank_orders import BACKWARD, FORWARD, WEIGHT, OpClass, OpenOrders, Pair

MEMORY_BITS = 40
KINDS = (FORWARD, BACKWARD, WEIGHT)
UNIT, LITERALS_A_SECOND = 5.0, 2000
PARAMETERS: Mapping[str, object] = {
    "cp_model_presolve": False,
    "cp_model_probing_level": 0,  # takes longer than the search
    # redundant with the literals: ten times faster
    "use_precedences_in_disjunctive_constraint": False,
    "use_sat_inprocessing": False,
}


@dataclass
class LiteralSum:
    """A constant plus a weighted sum of literals."""

    constant: int = 0
    literals: list[cp_model.LiteralT] = field(default_factory=list)
    weights: list[int] = field(default_factory=list)

    def add(self, literal: cp_model.LiteralT, weight: int) -> None:
        if weight:
            self.literals.append(literal)
            self.weights.append(weight)

    def add_all(self, of: tuple[int, Sequence[cp_model.LiteralT]], weight: int) -> None:
        """Add ``weight`` times a number, and ``weight`` for each literal."""
        number, literals = of
        self.constant += weight * number
        if weight:
            self.literals += literals
            self.weights += [weight] * len(literals)

    @property
    def total(self) -> cp_model.LinearExpr:
        return cp_model.LinearExpr.weighted_sum(self.literals, self.weights) + self.constant


def rank_orders(problem: Problem) -> list[OpenOrders]:
    """The classes of each rank."""
    costs, streams = Costs.of(problem), streams_of(problem)
    amounts = [*costs.m_b.tolist(), *costs.m_w.tolist()]
    every = float(costs.m_b.sum()) * problem.microbatches
    sizes = Ticks.of(amounts, every, bits=MEMORY_BITS)
    m_b, m_w = ([sizes.down(size) for size in m.tolist()] for m in (costs.m_b, costs.m_w))
    found = []
    for rank, limit in enumerate(costs.limit.tolist()):
        hosted = tuple(
            (stage, n)
            for n, stream in enumerate(streams)
            for stage in np.flatnonzero(problem.owner[:, stream[0]] == rank).tolist()
        )
        most = math.floor(limit * (1 + ROUNDING) * sizes.per_unit) if limit < every else None
        found.append(OpenOrders(hosted, tuple(map(len, streams)), m_b, m_w, most))
    return found


def literals(problem: Problem) -> int:
    """The number of literals in the problem's model."""
    return sum(rank.literals() for rank in rank_orders(problem))


def unit_of(number: int) -> float:
    """Seconds per unit of CP-SAT's deterministic time, in a model with ``number`` literals."""
    return UNIT + number / LITERALS_A_SECOND


class Apart(NamedTuple):
    """A known precedence: op j + ``m`` of class ``b`` starts at least ``way`` after op j of ``a``.

    It holds for all j.
    """

    a: OpClass
    b: OpClass
    m: int
    way: float


class Starts(Protocol):
    """The start variables of a model, in ticks, for :class:`RankConstraints`.

    ``end``: when all ops of a rank have ended that are of the kind ``until`` or an earlier one.
    """

    cp: cp_model.CpModel

    @property
    def until(self) -> OpKind: ...

    def takes(self, each: OpClass) -> int: ...

    def start(self, each: OpClass, k: int) -> cp_model.IntVar: ...

    def begins(self, rank: OpenOrders) -> cp_model.IntVar: ...

    def end(self, rank: OpenOrders, begins: cp_model.IntVar) -> cp_model.LinearExpr: ...


class GeneralInterleaving(TickModel):
    """The model of a problem, for schedules of cost ``low`` to ``high``.

    ``apart``: known precedences, which become constraints.
    """

    parameters, until = PARAMETERS, WEIGHT

    def __init__(
        self, problem: Problem, low: float, high: float, apart: Sequence[Apart] = ()
    ) -> None:
        c = self._costs = Costs.of(unfused(problem))
        super().__init__(problem, (c.durations[:3], c.into_f, c.into_b), low, high, BITS)
        self._streams = streams_of(problem)
        self._times = [[self.ticks.down(t) for t in row] for row in c.durations[:3].tolist()]
        self._makespan = problem.objective is Objective.MAKESPAN
        self._horizon = self.most if self._makespan else 2 * self.most
        self._start = {
            (OpClass(kind, stage, n), k): self.cp.new_int_var(0, self._horizon, "")
            for kind in KINDS
            for stage in range(problem.stages)
            for n, stream in enumerate(self._streams)
            for k in range(len(stream))
        }
        self._dependencies()
        self._first()
        ranks = rank_orders(problem)
        self.unit = unit_of(sum(rank.literals() for rank in ranks))
        for rank in ranks:
            if rank.hosted:
                RankConstraints(self, rank).constrain()
        for a, b, m, way in apart:
            for j in range(problem.microbatches - m):
                self.cp.add(self.start(b, j + m) >= self.start(a, j) + self.ticks.down(way) - 1)

    def takes(self, each: OpClass) -> int:
        return self._times[each.kind][each.stage]

    def start(self, each: OpClass, k: int) -> cp_model.IntVar:
        return self._start[each, k]

    def _dependencies(self) -> None:
        last = self.problem.stages - 1
        for (each, k), start in self._start.items():
            kind, stage, n = each
            needs = []
            if kind is FORWARD and stage > 0:
                needs.append(
                    (OpClass(FORWARD, stage - 1, n), self._delay(self._costs.into_f, each))
                )
            elif kind is BACKWARD and stage < last:
                needs.append(
                    (OpClass(BACKWARD, stage + 1, n), self._delay(self._costs.into_b, each))
                )
            elif kind is not FORWARD:
                needs.append((OpClass(OpKind(kind - 1), stage, n), 0))
            for other, delay in needs:
                self.cp.add(start >= self.start(other, k) + self.takes(other) + delay)
            if k > 0:
                self.cp.add(start >= self.start(each, k - 1) + self.takes(each))

    def _first(self) -> None:
        """Add that an F of stage 0 starts at 0: only the first F of a stream waits for nothing."""
        at_once = [self.cp.new_bool_var("") for _ in self._streams]
        for n, literal in enumerate(at_once):
            self.cp.add(self.start(OpClass(FORWARD, 0, n), 0) == 0).only_enforce_if(literal)
        self.cp.add_bool_or(at_once)

    def _delay(self, into: np.ndarray[tuple[int, ...], np.dtype[np.float64]], each: OpClass) -> int:
        return self.ticks.down(float(into[each.stage, self._streams[each.stream][0]]))

    def begins(self, rank: OpenOrders) -> cp_model.IntVar:
        """A variable no later than the rank's first op, an F of the lowest stage of a stream."""
        lowest = {n: stage for stage, n in reversed(rank.hosted)}
        firsts = [self.start(OpClass(FORWARD, stage, n), 0) for n, stage in lowest.items()]
        if len(firsts) == 1:
            return firsts[0]
        begins = self.cp.new_int_var(0, self._horizon, "")
        for first in firsts:
            self.cp.add(begins <= first)
        return begins

    def end(self, rank: OpenOrders, begins: cp_model.IntVar) -> cp_model.LinearExpr:
        return self.cost + 0 if self._makespan else self.cost + begins

    def orders(self, solution: cp_model.CpSolverSolutionCallback) -> tuple[IntArray, ...]:
        """The packed ops of a solution by rank; ops of zero duration may be in an invalid order."""
        rows: list[list[tuple[int, bool, int, int, Op]]] = [[] for _ in range(self.problem.ranks)]
        owner = self.problem.owner
        for (each, k), start in self._start.items():
            j = self._streams[each.stream][k]
            op = Op(each.kind, each.stage, j)
            key = solution.value(start), self.takes(each) > 0, k, int(each.kind)
            rows[int(owner[each.stage, j])].append((*key, op))
        return tuple(pack(row[-1] for row in sorted(rank, key=lambda r: r[:-1])) for rank in rows)


class RankConstraints:
    """Adds the constraints of one rank to a model."""

    def __init__(self, model: Starts, rank: OpenOrders) -> None:
        self._model, self._cp, self._rank = model, model.cp, rank
        self._literals: dict[Pair, cp_model.IntVar] = {}

    def constrain(self) -> None:
        model, cp, rank = self._model, self._cp, self._rank
        cp.add_no_overlap(
            cp.new_fixed_size_interval_var(model.start(each, k), model.takes(each), "")
            for each, k in rank.ops(*KINDS)
        )
        self._known()
        begins = model.begins(rank)
        for each in rank.classes(model.until):
            last = model.start(each, rank.counts[each.stream] - 1)
            cp.add(model.end(rank, begins) >= last + model.takes(each))
        for each, k in rank.ops(FORWARD, BACKWARD):
            self._span(each, k, begins)
            if each.kind is FORWARD and rank.limit is not None:
                self._memory(each, k, rank.limit)
        self._implications()

    def _known(self) -> None:
        """Add the orders that memory decides, which literals and sums take for granted."""
        for a, b in self._rank.pairs():
            apart = self._rank.ahead(a, b) + 1
            for i in range(apart, self._rank.counts[a.stream]):
                ends = self._model.start(b, i - apart) + self._model.takes(b)
                self._cp.add(self._model.start(a, i) >= ends)

    def _before(self, a: OpClass, i: int, b: OpClass, j: int) -> cp_model.LiteralT:
        """The literal that a(i) runs before b(j), an open pair."""
        places = [(each.stream, self._rank.place(each)) for each in (a, b)]
        if places[0] > places[1]:
            return ~self._literal(Pair(b, j, a, i))
        return self._literal(Pair(a, i, b, j))

    def _literal(self, pair: Pair) -> cp_model.IntVar:
        if pair not in self._literals:
            literal = self._literals[pair] = self._cp.new_bool_var("")
            a, i, b, j = pair
            first, second = self._model.start(a, i), self._model.start(b, j)
            self._cp.add(second >= first + self._model.takes(a)).only_enforce_if(literal)
            self._cp.add(first >= second + self._model.takes(b)).only_enforce_if(~literal)
        return self._literals[pair]

    def _weight_before(self, w: OpClass, j: int, f: OpClass, k: int) -> cp_model.LiteralT:
        """A literal that can only be true if the W runs before the F."""
        pair = Pair(w, j, f, k)
        if pair not in self._literals:
            literal = self._literals[pair] = self._cp.new_bool_var("")
            ends = self._model.start(w, j) + self._model.takes(w)
            self._cp.add(self._model.start(f, k) >= ends).only_enforce_if(literal)
        return self._literals[pair]

    def _beside(
        self, other: OpClass, each: OpClass, k: int
    ) -> tuple[int, Sequence[cp_model.LiteralT]]:
        """How many ops of ``other`` always run before each(k), and literals of those that may.

        The literals of W's are implications only (:meth:`_weight_before`).
        """
        before = self._weight_before if other.kind is WEIGHT else self._before
        known, may = self._rank.beside(other, each, k)
        return known, [before(other, j, each, k) for j in may]

    def _memory(self, f: OpClass, k: int, limit: int) -> None:
        """Add the memory constraint at f(k): once for all memory, once for only the M_B's.

        M_B's are often multiples of one size, so the second constraint can be stronger.
        """
        rank = self._rank
        chunks, held = LiteralSum(rank.m_b[f.stage]), LiteralSum(rank.m_b[f.stage])
        for each in rank.classes(*KINDS):
            m_b, m_w = rank.m_b[each.stage], rank.m_w[each.stage]
            before = self._beside(each, f, k)
            if each.kind is not WEIGHT:
                chunks.add_all(before, m_b if each.kind is FORWARD else -m_b)
            change = (m_b, m_w - m_b, -m_w)[KINDS.index(each.kind)]
            held.add_all(before, change)
        self._cp.add(chunks.total <= limit)
        self._cp.add(held.total <= limit)

    def _span(self, each: OpClass, k: int, begins: cp_model.IntVar) -> None:
        """Add: the ops before each(k) fit after the rank's first op, all others before its end."""
        model, rank, done, left = self._model, self._rank, LiteralSum(), LiteralSum()
        for other in rank.classes(FORWARD, BACKWARD):
            takes = after = model.takes(other)
            if other.kind is BACKWARD and model.until is WEIGHT:
                after += model.takes(OpClass(WEIGHT, other.stage, other.stream))
            before = self._beside(other, each, k)
            done.add_all(before, takes)
            left.constant += after * rank.counts[other.stream]
            left.add_all(before, -after)
        start = model.start(each, k)
        self._cp.add(start >= begins + done.total)
        self._cp.add(model.end(rank, begins) >= start + left.total)

    def _implications(self) -> None:
        for (a, i, b, j), literal in self._literals.items():
            for follows in (Pair(a, i - 1, b, j), Pair(a, i, b, j + 1)):
                if follows in self._literals:
                    self._cp.add_implication(literal, self._literals[follows])
