"""A lower bound from a linear program: how much one rank can have run at each time.

A *class* c is a kind of op of one stage of the rank. Let X_c(t) be the share of class c that has
run at time t after the rank's first op S_r: an op that has ended counts fully, one that is running
by the part of its time. Let d_c be the time of an op of class c and M the number of microbatches.
Every schedule satisfies:

- *Pace*: X_c grows from 0 to 1, and M sum d_c (X_c(t') - X_c(t)) <= t' - t.
- *Memory*: M sum (m_b (X_F - X_B) + m_w (X_B - X_W)) <= limit. An F takes its memory when it
  starts, and a B or W releases it when it ends, so at any time the left side is at most what is
  held. The sum of only the M_B's is within the limit as well; if all sizes are equal, it is at most
  the whole number of M_B's that fit.
- *Precedence*: if an op of class v starts at least D after the op of class u of the same
  microbatch, then X_v(t) <= X_u(t - D + max(0, d_u - d_v)). Proof: if a share p of the op of v has
  run at t, it started by t - p d_v, and the op of u by t - p d_v - D. So at time t - D + max(0, d_u
  - d_v) a share of at least p of the op of u has run. Ops that have ended are the case p = 1. The
  least times D are those of :mod:`.general_placement`.
- *Entries* (:mod:`.host_model`): until the first F of a stage starts, there must still be room for
  its M_B in addition to all that is held; until the first B of a stage starts, few F's of the
  rank's next stage can have run.

The program has variables X_c only at multiples of a time step; the D are rounded down to whole
steps. If the rank cannot have run all its ops by a multiple of the step, its span is larger than
that. If it cannot have run all its B's, the bound follows by
:meth:`.general_placement.GeneralPlacement.way_back`. Bisection finds the largest such multiple.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import ceil, isfinite
from typing import Any

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.units import duration

from ...core.bound import Bound, starts_later
from ...core.overlap_relaxation import least_times
from ...core.relaxations import unfused
from ...core.stopping import Budget
from ...core.tolerances import ROUNDING
from ..rank_model import filled, held_until_last_backward
from .general_placement import GeneralPlacement
from .host_model import HostModel

WORDS = "what a rank can have run by when, within its memory, as a small linear program"
STEPS = 400  # steps in a time of the ceiling, divided by the number of stages of the rank
FINER = np.linspace(0.8, 1.0, 81)  # times the step; the one that rounds the D best
WHOLE = 1 - 1e-5  # a smaller share means that not all has run; tolerances are far smaller
PIVOT, ROW = 2, 500  # work in ops: of a row in a simplex iteration, and of a row itself
EXPLAINED = 5e7  # work, in ops, to compute the bound with more memory for an explanation
_EXACT = "primal_feasibility_tolerance: 1e-9 dual_feasibility_tolerance: 1e-9"
_KINDS = "FBW"
_Class = tuple[str, int]  # kind of op, index of the stage on the rank
_Way = tuple[_Class, _Class, float]


class RankFlow:
    """The linear program of a rank, for times up to ``ceiling`` after its first op."""

    def __init__(
        self, placed: GeneralPlacement, host: HostModel, ceiling: float, steps: int
    ) -> None:
        from ortools.linear_solver import pywraplp

        self._host, self._solver = host, pywraplp.Solver.CreateSolver("GLOP")
        self._solver.SetSolverSpecificParametersAsString(_EXACT)
        self._stages = range(len(host.stages))
        self._times = {
            (kind, i): float(of[i])
            for kind, of in zip(_KINDS, (host.f, host.b, host.w), strict=True)
            for i in self._stages
        }
        d = self._times
        ways = [(u, v, way - max(0.0, d[u] - d[v])) for u, v, way in self._ways(placed)]
        self.step = _step(ways, ceiling * len(host.stages) / steps)
        self.steps = ceil(ceiling / self.step)
        self._shares = {each: self._rising() for each in self._times}
        ahead = placed.down[list(host.stages)] - placed.down[host.lowest]
        self._entries = list(zip(host.m_b.tolist(), ahead.tolist(), strict=True))
        self._pace()
        self._memory()
        for way in ways:
            self._keep(*way)
        for i, stage in enumerate(host.stages[:-1]):
            most = host.beyond(i) / host.count
            for k in range(1, _whole(placed.turn(host.lowest, stage) / self.step) + 1):
                self._shares["F", i + 1][k].SetUb(min(self._shares["F", i + 1][k].Ub(), most))

    def longest(self, ops: Sequence[str], known: float, budget: Budget) -> float:
        """The last time, from ``known`` on, by which not all ops of the kinds ``ops`` can have run.

        0 if there is none.
        """
        first = low = max(0, int(known / self.step))
        high = self.steps + 1
        done = self._rising()
        for kind, i in product(ops, self._stages):
            for share, own in zip(done, self._shares[kind, i], strict=True):
                self._solver.Add(share <= own)
        jump = 1
        while high - low > 1 and not budget():
            at = low + max(1, min(jump, (high - low) // 2))
            if self._share(done[at], budget) < WHOLE:
                low, jump = at, 2 * jump
            else:
                high = at
        return low * self.step if low > first else 0.0

    def _share(self, share: Any, budget: Budget) -> float:
        """The maximum of ``share``; 1 if the solver finds no optimum in time."""
        if isfinite(budget.time.left):
            self._solver.SetTimeLimit(1 + int(1000 * budget.time.left))  # 0 would mean no limit
        self._solver.Maximize(share)
        status = self._solver.Solve()
        pivots = PIVOT * self._solver.iterations() + ROW
        budget.work.spend(pivots * self._solver.NumConstraints())
        return self._solver.Objective().Value() if status == self._solver.OPTIMAL else 1.0

    def _rising(self) -> list[Any]:
        """Create a share at each time step: 0 at first, never less than before."""
        shares = [self._solver.NumVar(0.0, float(k > 0), "") for k in range(self.steps + 1)]
        for k in range(self.steps):
            self._solver.Add(shares[k] <= shares[k + 1])
        return shares

    def _row(self, most: float, terms: dict[_Class, float], k: int, since: int = 0) -> None:
        """Add: the sum of ``terms`` at step ``k``, minus that at ``since``, is at most ``most``."""
        row = self._solver.Constraint(-self._solver.infinity(), most)
        for each, factor in terms.items():
            row.SetCoefficient(self._shares[each][k], factor)
            if since:
                row.SetCoefficient(self._shares[each][since], -factor)

    def _pace(self) -> None:
        for k in range(1, self.steps + 1):
            self._row(self.step / self._host.count, self._times, k, k - 1)

    def _memory(self) -> None:
        host = self._host
        if not isfinite(host.limit):
            return
        chunks: dict[_Class, float] = {}
        held: dict[_Class, float] = {}
        for i, m_b, m_w in zip(self._stages, host.m_b.tolist(), host.m_w.tolist(), strict=True):
            chunks |= {("F", i): m_b, ("B", i): -m_b}
            held |= {("F", i): m_b, ("B", i): m_w - m_b, ("W", i): -m_w}
        room = filled(host.m_b, host.limit)
        for k in range(1, self.steps + 1):
            self._row(host.limit / host.count, held, k)
            kept = [m for m, way in self._entries if way >= k * self.step]
            self._row((room - max(kept, default=0.0)) / host.count, chunks, k)

    def _ways(self, placed: GeneralPlacement) -> Iterator[_Way]:
        """Yield the least times between the starts of two ops of a microbatch."""
        own = self._host.stages
        for i, j in product(self._stages, self._stages):
            if i < j:
                yield ("F", i), ("F", j), float(placed.down[own[j]] - placed.down[own[i]])
                yield ("B", j), ("B", i), float(placed.back[own[i]] - placed.back[own[j]])
            yield ("F", i), ("B", j), placed.turn(own[i], own[j])
        for i in self._stages:
            yield ("B", i), ("W", i), self._times["B", i]

    def _keep(self, before: _Class, after: _Class, way: float) -> None:
        apart = _whole(way / self.step)
        for k, share in enumerate(self._shares[after]):
            if k <= apart:
                share.SetUb(0.0)
            else:
                self._solver.Add(share <= self._shares[before][k - apart])


def _whole(steps: float) -> int:
    return max(0, int(steps - ROUNDING))


def _step(ways: Sequence[_Way], longest: float) -> float:
    """The step, at most a fifth shorter than ``longest``, by which the D are rounded least."""
    lengths = np.array([way for _, _, way in ways])
    return float(min(longest * FINER, key=lambda step: float((lengths % step).sum())))


def placed_model(problem: Problem) -> GeneralPlacement:
    """The placement with the relaxed times that the bound uses."""
    return GeneralPlacement.of(least_times(unfused(problem)))


def latest_and_longest(placed: GeneralPlacement) -> tuple[HostModel, HostModel]:
    """The ranks to compute the bound for, chosen by closed-form estimates.

    First the rank whose last B, plus the way of its microbatch back to the first ranks, is latest.
    Second the rank with the longest span.
    """

    def span(host: HostModel) -> float:
        return max(host.work, host.holding_span()) + placed.lag(host)

    def back(host: HostModel) -> float:
        return _way_back(placed, host, held_until_last_backward(host)).value

    return max(placed.hosts, key=back), max(placed.hosts, key=span)


def _way_back(placed: GeneralPlacement, host: HostModel, until: float) -> Bound:
    why = "what it holds has to fit into its memory at every moment"
    return placed.way_back("rank-flow", WORDS, host, until, why)


def flow_bound(
    problem: Problem, known: float, ceiling: float, budget: Budget, steps: int = STEPS
) -> Bound:
    """A lower bound on the cost of every schedule; value 0 if it is below ``known``.

    ``ceiling``: the cost of some schedule. The bound is computed for the two ranks of
    :func:`latest_and_longest`. Stages must be on one rank each and neither recomputed nor
    offloaded, and microbatches equal.
    """
    placed = placed_model(problem)

    def back(host: HostModel, until: float) -> Bound:
        return _way_back(placed, host, until)

    def until_end(host: HostModel, budget: Budget) -> Bound:
        lag = placed.lag(host)
        longest = RankFlow(placed, host, ceiling - lag, steps).longest("FBW", known - lag, budget)

        def numbers() -> list[str]:
            more = float(Costs.of(problem).m_b.max())
            roomier = replace(problem, memory_limit=tuple(x + more for x in problem.memory_limit))
            with_more = placed_model(roomier)
            own = next(each for each in with_more.hosts if each.rank == host.rank)
            flow = RankFlow(with_more, own, ceiling - lag, steps)
            then = max(own.work, flow.longest("FBW", own.work, Budget(ops=EXPLAINED))) + lag
            return [
                f"rank {host.rank} computes for {duration(host.work)} and spans at least "
                f"{duration(longest)}",
                "with memory for one M_B more on each rank the same argument gives "
                f"it {duration(min(longest + lag, then))}",
                *starts_later(lag),
            ]

        return Bound(longest + lag, "rank-flow", WORDS, host.rank, numbers)

    def until_last_backward(host: HostModel, budget: Budget) -> Bound:
        flow, way = RankFlow(placed, host, ceiling, steps), back(host, 0.0).value
        return back(host, flow.longest("FB", known - way, budget))

    far, longest = latest_and_longest(placed)
    spans = until_end(longest, budget)
    return max(spans, until_last_backward(far, budget), key=lambda bound: bound.value)
