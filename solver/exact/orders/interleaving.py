"""All orders with one stage per rank as a small CP-SAT model, for memory that limits the orders.

If memory holds K microbatches, few orders are open: F(k) waits for B(k - K) and precedes B(k), so
only its order with the K - 1 B's in between is to be decided. The model has literals only for these
pairs, and none for W's. It proves bounds and finds better schedules.

**Names.** F(i, k) is the k-th F that stage i runs, whatever its microbatch; likewise B and W
(:mod:`...bounds.low_memory.activation_slots`).

**Literals.** x(i, k, j), for k - K_i < j < k, says that F(i, k) runs before B(i, j). For other j
the order is known: F(i, k) needs the memory of B(i, k - K_i), and B(i, k) its own F. So

    x(i, k, j) implies  x(i, k, j+1) and x(i, k-1, j), by the order of B's and F's;
                        x(i-1, k, j), as F(i-1, k) comes before F(i, k), B(i, j) before B(i-1, j).

**Times.** The starts of all ops; F(0, 0) starts at 0. Dependencies and the order of each kind hold,
no two ops of a stage overlap, and F(i, k) starts no earlier than ``slot_wait`` after the end of
B(i, k-K_i).

**Memory.** If n B's run before F(i, k), then k + 1 - n microbatches, its own included, hold M_B.
Beside them fit the M_W of at most q W's, so at least n - q W's have run: F(i, k) starts after the
end of W(i, n-q-1). Thus the memory limit is kept at every F, and memory grows only at F's. So the
solutions of the model are schedules, and schedules are solutions.

**Span.** After F(i, k) the rank has M - k F's to run (this one included), and B's and W's of all
but the n microbatches above. After B(i, k) it has M - k B's and W's, and the F's that are not
before it. What is left after each op, and the end of the last W, are within the cost (makespan), or
within the cost after F(i, 0) (period).

**Ticks.** Times are whole ticks, rounded down unless they are decimals. The starts of a schedule,
rounded down too, satisfy all of the above, because floor(x + y) >= floor(x) + floor(y); a period
grows by less than one tick. So if the model has no solution of cost T plus one tick
(:meth:`Ticks.most`), no schedule costs T or less.

A schedule starts each op as soon as its order allows, whereas a solution may start a rank's first
op later. So the orders of solutions are timed by the simulator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from ortools.sat.python import cp_model

from pipeloom.ir.model.ops import FloatArray, IntArray, Op, OpKind, pack
from pipeloom.ir.model.problem import Objective, Problem

from ...bounds.low_memory.activation_slots import most_waiting, slot_wait
from ...core.linear_instance import LinearInstance
from ..integer_time import Ticks

BITS = 28  # bits of times that are not decimals; with more, propagation tick by tick takes long
OPS = (OpKind.F, OpKind.B, OpKind.W)


class TickModel:
    """A model in whole ticks of the schedules of ``problem`` that cost ``low`` to ``high``.

    ``times``: durations and delays. ``most``: the greatest cost in ticks.
    """

    def __init__(
        self, problem: Problem, times: Sequence[FloatArray], low: float, high: float, bits: int
    ) -> None:
        self.problem, self.cp = problem, cp_model.CpModel()
        each = np.unique(np.concatenate([row.ravel() for row in times])).tolist()
        self.ticks = Ticks.of(each, 2 * high, bits=bits)
        self.most = self.ticks.most(high)
        self.cost = self.cp.new_int_var(min(self.ticks.least(low), self.most), self.most, "cost")

    def proves(self, bound: float) -> float:
        """The lower bound, in the profile's unit, that a bound on the model's cost in ticks proves.

        The cost of a schedule may be a tick below that of the model.
        """
        return (bound - (not self.ticks.exact)) / self.ticks.per_unit


class Interleaving(TickModel):
    """The model of a problem, for schedules of cost ``low`` to ``high``."""

    unit = 5.0
    parameters: Mapping[str, object] = {}

    def __init__(self, problem: Problem, linear: LinearInstance, low: float, high: float) -> None:
        times = (linear.f, linear.b, linear.w, linear.down, linear.up)
        super().__init__(problem, times, low, high, BITS)
        self.linear = _in_ticks(linear, self.ticks)
        # rank 0 starts at 0, and its last B comes after every rank's first op: all end by twice the
        # cost
        horizon = 2 * self.most
        self.f, self.b, self.w = (
            [
                [self.cp.new_int_var(0, horizon, "") for _ in range(linear.microbatches)]
                for _ in range(linear.stages)
            ]
            for _ in OPS
        )
        self.before: dict[tuple[int, int, int], cp_model.IntVar] = {}
        self.cp.add(self.f[0][0] == 0)
        for i in range(linear.stages):
            self._orders(i)
            self._dependencies(i)
            self._memory(i)
            self._span(i)
        self._implications()
        self.cp.minimize(self.cost)

    def _open(self, i: int, k: int) -> range:
        return range(max(0, k - int(self.linear.capacity[i]) + 1), k)

    def _orders(self, i: int) -> None:
        """Add the literals of stage i, the order of each kind, and that no two ops overlap."""
        cp, (f, b, w) = self.cp, self._durations(i)
        every = range(self.linear.microbatches)
        for k in every:
            for j in self._open(i, k):
                leads = self.before[i, k, j] = cp.new_bool_var("")
                cp.add(self.b[i][j] >= self.f[i][k] + f).only_enforce_if(leads)
                cp.add(self.f[i][k] >= self.b[i][j] + b).only_enforce_if(~leads)
        rows = ((self.f[i], f), (self.b[i], b), (self.w[i], w))
        cp.add_no_overlap(
            cp.new_fixed_size_interval_var(row[k], time, "") for row, time in rows for k in every
        )
        for row, time in rows:
            for k in every[1:]:
                cp.add(row[k] >= row[k - 1] + time)

    def _dependencies(self, i: int) -> None:
        cp, (f, b, _), c = self.cp, self._durations(i), self.linear
        wait, capacity = int(slot_wait(c)[i]), int(c.capacity[i])
        for k in range(c.microbatches):
            cp.add(self.w[i][k] >= self.b[i][k] + b)
            if i + 1 < c.stages:
                cp.add(self.f[i + 1][k] >= self.f[i][k] + f + int(c.down[i]))
                cp.add(self.b[i][k] >= self.b[i + 1][k] + int(c.b[i + 1] + c.up[i]))
            else:
                cp.add(self.b[i][k] >= self.f[i][k] + f)
            if k >= capacity:
                cp.add(self.f[i][k] >= self.b[i][k - capacity] + b + wait)

    def _memory(self, i: int) -> None:
        """Add, for each number n of B's before F(i, k), the W's that must have run.

        Also that F(i, k) starts after the time of all of these.
        """
        f, b, w = self._durations(i)
        for k in range(1, self.linear.microbatches):
            least = max(0, k + 1 - int(self.linear.capacity[i]))
            waiting = most_waiting(self.linear, i, k + 1 - np.arange(least, k + 1))
            for n, most in enumerate(waiting.tolist(), least):
                done = max(0, n - int(most))
                just = [~self.before[i, k, n - 1]] if n > least else []
                just += [self.before[i, k, n]] if n < k else []
                took = self.f[i][0] + k * f + n * b + done * w
                self.cp.add(self.f[i][k] >= took).only_enforce_if(just)
                if done > 0:
                    come = self.w[i][done - 1] + w
                    self.cp.add(self.f[i][k] >= come).only_enforce_if(just)

    def _span(self, i: int) -> None:
        """Add that the ops left after each op of stage i are within the cost."""
        f, b, w = self._durations(i)
        m = self.linear.microbatches
        period = self.problem.objective is Objective.PERIOD
        end = self.cost + self.f[i][0] if period else self.cost + 0
        self.cp.add(end >= self.w[i][-1] + w)
        for k in range(m):
            later_b = (m - k) + sum(self.before[i, k, j] for j in self._open(i, k))
            # F's that may run before it
            meets = range(k + 1, min(m, k + int(self.linear.capacity[i])))
            later_f = m - k - 1 - sum(self.before[i, j, k] for j in meets)
            self.cp.add(end >= self.f[i][k] + (m - k) * f + (b + w) * later_b)
            self.cp.add(end >= self.b[i][k] + (m - k) * (b + w) + f * later_f)

    def _implications(self) -> None:
        for (i, k, j), leads in self.before.items():
            for follows in ((i, k, j + 1), (i, k - 1, j), (i - 1, k, j)):
                if follows in self.before:
                    self.cp.add_implication(leads, self.before[follows])

    def _durations(self, i: int) -> tuple[int, int, int]:
        return int(self.linear.f[i]), int(self.linear.b[i]), int(self.linear.w[i])

    def orders(self, solution: cp_model.CpSolverSolutionCallback) -> tuple[IntArray, ...]:
        """The packed ops of a solution by rank; ops of zero duration may be in an invalid order."""
        rows = [np.empty(0, dtype=np.int64)] * self.problem.ranks
        for i in range(self.linear.stages):
            kinds = zip(OPS, (self.f[i], self.b[i], self.w[i]), self._durations(i), strict=True)
            placed = [
                (solution.value(start), time > 0, k, kind)
                for kind, row, time in kinds
                for k, start in enumerate(row)
            ]
            rows[self.linear.ranks[i]] = pack(Op(kind, i, k) for _, _, k, kind in sorted(placed))
        return tuple(rows)


def _in_ticks(linear: LinearInstance, ticks: Ticks) -> LinearInstance:
    f, b, w, down, up = (
        np.array([ticks.down(time) for time in times.tolist()], dtype=np.float64)
        for times in (linear.f, linear.b, linear.w, linear.down, linear.up)
    )
    return linear._replace(f=f, b=b, w=w, down=down, up=up)
