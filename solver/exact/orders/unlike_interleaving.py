"""All orders of unlike microbatches as a CP-SAT model.

The counterpart of :mod:`.general_interleaving` in which every microbatch has its own ops.

**Literals.** x(a, b) says that op a runs before op b of the same rank. Ops of one microbatch have a
fixed order if one depends on the other. W's have literals only with F's: their order with other ops
matters only for no-overlap.

**Times.** The starts of all ops. Dependencies hold, no two ops of a rank overlap, and the rank of
stage 0 begins at 0, as every other op comes after an F of stage 0.

**Memory.** At each F, the sum of M_B and M_W of earlier ops that have not been released, by
literals, is within the limit. Only F's take memory.

**Span.** An F or B starts no earlier than the rank's first op plus the time of the F's and B's
before it. From its start on, there is time within the cost for all ops that do not run before it,
W's with their B's (period: the cost counts from the rank's first op; makespan: from 0).

**A subset of microbatches.** Removing microbatches from a schedule leaves a valid schedule of the
others, which costs no more: ranks begin no earlier and end no later. So a target that is refuted
for a subset is refuted for all. The subset has the microbatches that hold most memory for longest.

There is no objective: the model is refuted, or any solution is a schedule to start from.

Times and sizes are integers, rounded down, as in :mod:`.interleaving`: if the model has no solution
of cost T plus one tick, no schedule costs T or less.
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np
from ortools.sat.python import cp_model

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.model.ops import IntArray, Op, OpKind, pack
from pipeloom.ir.model.problem import Objective, Problem

from ...core.tolerances import ROUNDING
from .general_interleaving import PARAMETERS, LiteralSum
from .interleaving import TickModel

BITS = 20  # bits of times that are not decimals, and of a rank's limit
FORWARD, BACKWARD, WEIGHT = KINDS = OpKind.F, OpKind.B, OpKind.W


def literals(problem: Problem, number: int) -> int:
    """The number of literals in a model of ``number`` microbatches, slightly overestimated."""
    stages = np.bincount(Costs.of(problem).owner[:, 0])
    return int(4 * number * (number - 1) * (stages**2).sum())


class UnlikeInterleaving(TickModel):
    """The model of ``number`` microbatches, for schedules of cost ``low`` to ``high``.

    ``problem`` passes activations.
    """

    unit = 6.0
    parameters = PARAMETERS

    def __init__(self, problem: Problem, low: float, high: float, number: int) -> None:
        c = self.costs = Costs.of(problem)
        super().__init__(problem, (c.durations[:3], c.into_f, c.into_b), low, high, BITS)
        # rank 0 begins at 0, and all other ops but W's end before it does
        self.horizon = 2 * self.most
        every = product(KINDS, range(problem.stages), _largest(self.costs, number))
        self.start = {Op(*op): self.cp.new_int_var(0, self.horizon, "") for op in every}
        self.takes = {
            op: self.ticks.down(float(c.durations[op.kind, op.stage, op.microbatch]))
            for op in self.start
        }
        for op in self.start:
            self._dependency(op)
        for rank in np.unique(c.owner[:, 0]).tolist():
            _RankOrders(self, rank).constrain()

    def _dependency(self, op: Op) -> None:
        """Add that ``op`` starts after the op whose output it takes; an F of stage 0 takes none."""
        kind, stage, j = op.kind, op.stage, op.microbatch
        if kind is FORWARD and stage > 0:
            before, delay = Op(FORWARD, stage - 1, j), float(self.costs.into_f[stage, j])
        elif kind is BACKWARD and stage < self.problem.stages - 1:
            before, delay = Op(BACKWARD, stage + 1, j), float(self.costs.into_b[stage, j])
        elif kind is not FORWARD:
            before, delay = Op(OpKind(kind - 1), stage, j), 0.0
        else:
            return
        ends = self.start[before] + self.takes[before]
        self.cp.add(self.start[op] >= ends + self.ticks.down(delay))

    def orders(self, solution: cp_model.CpSolverSolutionCallback) -> tuple[IntArray, ...]:
        """The packed ops of a solution by rank; ops of zero duration may be in an invalid order."""
        rows: list[list[Op]] = [[] for _ in range(self.problem.ranks)]

        def key(op: Op) -> tuple[int, bool, int]:
            return solution.value(self.start[op]), self.takes[op] > 0, int(op.kind)

        for op in sorted(self.start, key=key):
            rows[int(self.costs.owner[op.stage, op.microbatch])].append(op)
        return tuple(map(pack, rows))


class _RankOrders:
    """Adds the constraints of one rank to the model."""

    def __init__(self, model: UnlikeInterleaving, rank: int) -> None:
        self._model, self._cp, self._costs = model, model.cp, model.costs
        self._limit = float(self._costs.limit[rank])
        owner = self._costs.owner[:, 0]
        self._ops = [op for op in model.start if owner[op.stage] == rank]
        self._literals: dict[tuple[Op, Op], cp_model.IntVar] = {}
        self._first = bool(rank == owner[0])

    def constrain(self) -> None:
        model, cp = self._model, self._cp
        cp.add_no_overlap(
            cp.new_fixed_size_interval_var(model.start[op], model.takes[op], "") for op in self._ops
        )
        begins = cp.new_int_var(0, 0 if self._first else model.horizon, "")
        period = model.problem.objective is Objective.PERIOD
        ends = model.cost + begins if period else model.cost + 0
        for op in self._ops:
            if op.kind is WEIGHT:
                cp.add(ends >= model.start[op] + model.takes[op])
            else:
                cp.add(begins <= model.start[op])
                self._span(op, begins, ends)
        if math.isfinite(self._limit):
            self._memory()

    def _before(self, a: Op, b: Op) -> cp_model.LiteralT | bool:
        """The literal that a runs before b, or its value if that is known."""
        if a.microbatch == b.microbatch and (known := _known(a, b)) is not None:
            return known
        if (b, a) in self._literals:
            return ~self._literals[b, a]
        if (a, b) not in self._literals:
            literal = self._literals[a, b] = self._cp.new_bool_var("")
            start, takes = self._model.start, self._model.takes
            self._cp.add(start[b] >= start[a] + takes[a]).only_enforce_if(literal)
            self._cp.add(start[a] >= start[b] + takes[b]).only_enforce_if(~literal)
        return self._literals[a, b]

    def _span(self, op: Op, begins: cp_model.IntVar, ends: cp_model.LinearExpr) -> None:
        """Add: the ops before this one fit after the rank's first op, all others before its end."""
        model, done, left = self._model, LiteralSum(), LiteralSum()
        for other in self._ops:
            if other.kind is WEIGHT:
                continue
            takes = after = model.takes[other]
            if other.kind is BACKWARD:
                after += model.takes[Op(WEIGHT, other.stage, other.microbatch)]
            left.constant += after
            if other != op:
                before = self._before(other, op)
                done.add(before, takes)
                left.add(before, -after)
        self._cp.add(model.start[op] >= begins + done.total)
        self._cp.add(ends >= model.start[op] + left.total)

    def _memory(self) -> None:
        unit = 2**BITS / self._limit if self._limit > 0 else 1.0
        most = math.floor(self._limit * unit * (1 + ROUNDING))
        change = {op: self._change(op, unit) for op in self._ops}
        for f in self._ops:
            if f.kind is FORWARD:
                held = LiteralSum(change[f])
                for op in self._ops:
                    if op != f:
                        held.add(self._before(op, f), change[op])
                self._cp.add(held.total <= most)

    def _change(self, op: Op, unit: float) -> int:
        """The change of the memory held by ``op``, rounded such that less is held, never more."""
        m_b, m_w = (
            math.floor(float(sizes[op.stage, op.microbatch]) * unit)
            for sizes in (self._costs.m_b, self._costs.m_w)
        )
        return m_b if op.kind is FORWARD else m_w - m_b if op.kind is BACKWARD else -m_w


def _largest(costs: Costs, number: int) -> list[int]:
    """The ``number`` microbatches with the largest product of memory and time, ascending."""
    areas = costs.m_b.sum(axis=0) * costs.durations[:2].sum(axis=(0, 1))
    return sorted(np.argsort(-areas, kind="stable")[:number].tolist())


def _known(a: Op, b: Op) -> bool | None:
    """Whether a runs before b, two ops of one microbatch; None if both orders are possible."""
    if a.kind is FORWARD or b.kind is FORWARD:
        return a.kind is FORWARD and (b.kind is not FORWARD or a.stage < b.stage)
    assert a.kind is b.kind is BACKWARD  # W's are compared only with F's
    return a.stage > b.stage
