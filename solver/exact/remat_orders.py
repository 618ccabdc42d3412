"""All orders and all choices of remat of a small problem, as a CP-SAT model.

For any map of stages to ranks where all microbatches go the same way; they are told apart by the
order in which stage 0 runs their F's, and by nothing else: with remat a microbatch that overtakes
another may be worth it.

**Ways.** Each microbatch of a stage stays, is recomputed at one level, or offloaded: one literal is
true. R's are ops of the rank, O's and L's of its two channels.

**Times.** Starts of all ops; dependencies hold, and no two ops of a rank, or copies of one way,
overlap. O comes after F, L after O, B after L or R. The first F of stage 0 starts at 0.

**Memory**, a sum over intervals within the limit: what the way keeps from F's start to B's end; the
rest of M_B from R's or L's start, or all along where it stays; up to O's end too where it is
offloaded; M_W from B's end to W's. Schedules hold no less: where a list has O later than its end,
or L earlier than its start, that is because memory allows it.

**Span.** What a rank runs, R's included, takes no longer than the cost leaves it, from the start of
one of its first F's on (period), or from that of stage 0's (makespan).

Where a BW takes less than its B and W, times are those of
:func:`..core.relaxations.unfused`, a relaxation; and a rank's first op may start later than its
order allows. Ticks are as in :mod:`.interleaving`, so what is refuted is a bound on all schedules.
"""

from __future__ import annotations

import math

import numpy as np
from ortools.sat.python import cp_model

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.cost.remat import OFFLOADED, STAYS
from pipeloom.ir.model.ops import IntArray, Op, OpKind, pack
from pipeloom.ir.model.problem import Objective, Problem

from ..core.relaxations import unfused
from ..core.tolerances import ROUNDING
from .general_interleaving import MEMORY_BITS
from .integer_time import Ticks
from .interleaving import BITS

Span = tuple[cp_model.IntervalVar, int]  # of memory, with how much


class RematOrders:
    """The model of a problem, for schedules of cost ``low`` to ``high``."""

    def __init__(self, problem: Problem, low: float, high: float) -> None:
        self.problem, self._costs = problem, Costs.of(unfused(problem))
        c = self._costs
        times = np.concatenate([c.durations.ravel(), c.into_f.ravel(), c.into_b.ravel()])
        finite = np.unique(times[np.isfinite(times) & (times <= high)]).tolist()
        self.ticks = Ticks.of(finite, 2 * high, bits=BITS)
        sizes = [*c.m_b.tolist(), *c.m_w.tolist(), *c.kept.ravel().tolist()]
        self._sizes = Ticks.of(sizes, float(c.m_b.sum()) * problem.microbatches, bits=MEMORY_BITS)
        self.cp = cp_model.CpModel()
        most = self.ticks.most(high)
        self.cost = self.cp.new_int_var(min(self.ticks.least(low), most), most, "cost")
        self._makespan = problem.objective is Objective.MAKESPAN
        self._horizon = most if self._makespan else 2 * most
        self._start: dict[Op, cp_model.IntVar] = {}
        self._chosen: dict[tuple[int, int, int], cp_model.IntVar] = {}
        self._ranks: list[list[cp_model.IntervalVar]] = [[] for _ in range(problem.ranks)]
        self._copies = {kind: [list(r) for r in self._ranks] for kind in (OpKind.O, OpKind.L)}
        self._held: list[list[Span]] = [[] for _ in self._ranks]
        for s in range(problem.stages):
            for j in range(problem.microbatches):
                self._microbatch(s, j, high)
        self._dependencies()
        for rank in range(problem.ranks):
            self._rank(rank)

    def proves(self, bound: float) -> float:
        """The bound, in the profile's unit, that one on the model's cost proves."""
        return (bound - (not self.ticks.exact)) / self.ticks.per_unit

    def _new(self, op: Op) -> cp_model.IntVar:
        self._start[op] = self.cp.new_int_var(0, self._horizon, str(op))
        return self._start[op]

    def _takes(self, op: Op) -> int:
        row = op.kind if op.kind is not OpKind.R or not op.level else op.level + 5
        return self.ticks.down(float(self._costs.durations[row, op.stage]))

    def _interval(
        self, op: Op, chosen: cp_model.IntVar | None = None
    ) -> tuple[cp_model.IntVar, int]:
        """Start and time of an op, which its rank or channel runs, where it is ``chosen``."""
        start, takes = self._new(op), self._takes(op)
        rank = self.problem.placement.owners[op.stage]
        rows = self._copies.get(op.kind, self._ranks)[rank]
        if chosen is None:
            rows.append(self.cp.new_fixed_size_interval_var(start, takes, ""))
        else:
            rows.append(self.cp.new_optional_fixed_size_interval_var(start, takes, chosen, ""))
        return start, takes

    def _microbatch(self, s: int, j: int, high: float) -> None:
        """The ops of a microbatch on a stage, its ways, and what it holds."""
        cp, c = self.cp, self._costs
        rank = self.problem.placement.owners[s]
        (f, f_takes), (b, b_takes), (w, _) = (self._interval(Op(k, s, j)) for k in list(OpKind)[:3])
        cp.add(b >= f + f_takes)
        cp.add(w >= b + b_takes)
        m_b, m_w = (self._sizes.down(float(each[s])) for each in (c.m_b, c.m_w))
        ended = b + b_takes
        self._hold(rank, b + b_takes, w + self._takes(Op(OpKind.W, s, j)), m_w, None)
        ways = [STAYS, *(k for k in range(1, len(c.again)) if c.again[k, s] <= high)]
        ways += [OFFLOADED] * bool(c.durations[OpKind.O, s] <= high)
        for way in ways:
            chosen = self._chosen[s, j, way] = cp.new_bool_var("")
            kept = min(m_b, self._sizes.down(float(c.kept[way, s])))
            self._hold(rank, f, ended, m_b if way == STAYS else kept, chosen)
            if way == OFFLOADED:
                out, takes = self._interval(Op(OpKind.O, s, j), chosen)
                cp.add(out >= f + f_takes).only_enforce_if(chosen)
                self._hold(rank, f, out + takes, m_b - kept, chosen)
                back, takes_back = self._interval(Op(OpKind.L, s, j), chosen)
                cp.add(back >= out + takes).only_enforce_if(chosen)
                cp.add(b >= back + takes_back).only_enforce_if(chosen)
                self._hold(rank, back, ended, m_b - kept, chosen)
            elif way != STAYS:
                again, takes = self._interval(Op(OpKind.R, s, j, way - 1), chosen)
                cp.add(again >= f + f_takes).only_enforce_if(chosen)
                cp.add(b >= again + takes).only_enforce_if(chosen)
                self._hold(rank, again, ended, m_b - kept, chosen)
        cp.add_exactly_one(self._chosen[s, j, way] for way in ways)

    def _hold(
        self,
        rank: int,
        start: cp_model.LinearExprT,
        end: cp_model.LinearExprT,
        size: int,
        chosen: cp_model.IntVar | None,
    ) -> None:
        if size <= 0 or math.isinf(self.problem.memory_limit[rank]):
            return
        length = self.cp.new_int_var(0, self._horizon, "")
        if chosen is None:
            span = self.cp.new_interval_var(start, length, end, "")
        else:
            span = self.cp.new_optional_interval_var(start, length, end, chosen, "")
        self._held[rank].append((span, size))

    def _dependencies(self) -> None:
        c, cp, start = self._costs, self.cp, self._start
        cp.add(start[Op(OpKind.F, 0, 0)] == 0)
        for j in range(self.problem.microbatches):
            for s in range(1, self.problem.stages):
                before, after = Op(OpKind.F, s - 1, j), Op(OpKind.F, s, j)
                delay = self.ticks.down(float(c.into_f[s, j]))
                cp.add(start[after] >= start[before] + self._takes(before) + delay)
                before, after = Op(OpKind.B, s, j), Op(OpKind.B, s - 1, j)
                delay = self.ticks.down(float(c.into_b[s - 1, j]))
                cp.add(start[after] >= start[before] + self._takes(before) + delay)
            if j:
                before, after = Op(OpKind.F, 0, j - 1), Op(OpKind.F, 0, j)
                cp.add(start[after] >= start[before] + self._takes(before))

    def _rank(self, rank: int) -> None:
        cp, problem = self.cp, self.problem
        stages = problem.placement.stages_of(rank)
        if not stages:
            return
        for rows in (self._ranks, *self._copies.values()):
            cp.add_no_overlap(rows[rank])
        if self._held[rank]:
            limit = problem.memory_limit[rank] * (1 + ROUNDING) * self._sizes.per_unit
            cp.add_cumulative(*zip(*self._held[rank], strict=True), math.floor(limit))
        begins = cp.new_int_var(0, self._horizon, "")
        end = self.cost + 0 if self._makespan else self.cost + begins
        work = 0
        for op in self._start:
            if op.stage in stages and op.kind is OpKind.F:
                cp.add(begins <= self._start[op])
            if op.stage in stages and op.kind is OpKind.W:
                cp.add(end >= self._start[op] + self._takes(op))
            if op.stage in stages and op.kind in (OpKind.F, OpKind.B, OpKind.W):
                work += self._takes(op)
        again = [
            (literal, self._takes(Op(OpKind.R, s, j, way - 1)))
            for (s, j, way), literal in self._chosen.items()
            if s in stages and way > STAYS
        ]
        recomputed = sum(literal * takes for literal, takes in again)
        cp.add(end >= begins + work + recomputed)

    def orders(self, solution: cp_model.CpSolverSolutionCallback) -> tuple[IntArray, ...]:
        """The order of a solution, packed ops by rank; may break a rule where ops take no time."""
        rows: list[list[tuple[int, int, int, int, Op]]] = [[] for _ in range(self.problem.ranks)]
        for op, start in self._start.items():
            if not self._runs(op, solution):
                continue
            at, takes = solution.value(start), self._takes(op)
            if op.kind is OpKind.O:  # listed where its memory is free
                at, takes = at + takes, -1
            key = at, min(takes, 1), op.microbatch, int(op.kind)
            rows[self.problem.placement.owners[op.stage]].append((*key, op))
        return tuple(pack(row[-1] for row in sorted(rank, key=lambda r: r[:-1])) for rank in rows)

    def _runs(self, op: Op, solution: cp_model.CpSolverSolutionCallback) -> bool:
        if op.kind is OpKind.R:
            way = op.level + 1
        elif op.kind in (OpKind.O, OpKind.L):
            way = OFFLOADED
        else:
            return True
        return bool(solution.value(self._chosen[op.stage, op.microbatch, way]))
