"""A lower bound from a small MILP over the moments of each rank: several stages, or two copies.

The counterpart of :mod:`..milp_relaxation` for any map of stages to ranks. A *stream* is a set of
microbatches that run every stage on the same ranks; there are two if microbatches go in both
directions. A *class* u is a stage of a stream, with M_u microbatches and the moments S_u (its first
F starts), y_u (its first B starts), t_u (its last F starts), V_u (its last B ends). From each class
of a stream to the next::

    S_(u+1) >= S_u + f_u + down      y_u >= y_(u+1) + b_(u+1) + up      y_u >= S_u + turn_u
    t_(u+1) >= t_u + f_u + down      V_u >= V_(u+1) + up + b_u          V_u >= t_u + turn_u + b_u

as the first and the last microbatch of each have passed the next stage, or go on to it. Moreover
t_u >= S_u + (M_u - 1) f_u, V_u >= y_u + M_u b_u, and t_u >= y_u + b_u if memory cannot hold M_u
microbatches of u.

The moments of a rank follow from those of the classes on it::

    R ── n F's ── Y ── F's, B's, W's ── T ── one F, a B's, r W's ── L ── W's ── E

R = min S_u is the rank's first op; Y = min y_u; T = max t_u; L = max V_u; E is its end. The first F
and the last B of a stream on the rank are of its lowest class there, its first B and its last F of
its highest. So with one stream it is known which class attains each minimum or maximum; with two,
binary variables choose the stream. n_u F's of class u come before Y; they include one of each class
of the stream of Y's microbatch. At T, a_u microbatches of u have B and W to come; they include the
microbatch of the last F, in each class of its stream. q_u have only W to come. Of the W's left at
T, r_u run before L. So, with sums over the classes u of the rank::

    Y >= R + sum n f                                          sum n M_B <= limit
    T >= Y + sum (M - n) f + (M - a) b + (M - a - q) w - f_T   (memory does not hold all F's)
    T >= R + sum M f - f_T                                    sum a M_B + q M_W <= limit
    L >= T + f_T + sum a b + r w                              r <= a + q
    L >= Y + sum (M - n) f + M b + (M - a - q + r) w
    E >= L + sum (a + q - r) w                                E >= V_u + w_u

where f_T is the time of the last F. As the last B runs, its M_B and the M_W of all W's left except
its own fit into the limit. If all M_B of a rank are equal, only whole ones are counted. The
memory-time of the microbatches fits into limit times the time from R to L, and from R to E
(:func:`..rank_model.held_until_last_backward`). The cost is at least E - R (period), or E with S >=
0 (makespan). The minimum is a lower bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.model.ops import FloatArray
from pipeloom.ir.model.placement import PlacementKind
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.units import duration

from ...core.bound import Bound
from ...core.overlap_relaxation import least_times
from ...core.relaxations import unfused
from ...core.stopping import Budget
from ...core.streams import streams_of
from ...core.tolerances import ROUNDING, counts_within
from ..general import busy
from ..milp_relaxation import SECONDS, least_of, new_solver
from ..rank_model import RankModel, held_until_last_backward
from .general_placement import GeneralPlacement, rank_visits

WORDS = "what must happen between five moments on each rank, as a small MILP"


@dataclass(frozen=True, slots=True, eq=False)
class StreamTimes:
    """The times of a stream of ``count`` microbatches by stage, shape (S,), and its ``ranks``.

    ``down``: delay into F from the stage before; ``up``: delay into B from the stage after.
    """

    count: int
    ranks: Sequence[int]
    f: FloatArray
    b: FloatArray
    w: FloatArray
    down: FloatArray
    up: FloatArray

    @property
    def turn(self) -> FloatArray:
        """The least time from the start of F to the start of B on each stage, shape (S,)."""
        passed = self.f + self.b + self.down + self.up
        return np.asarray(passed[::-1].cumsum()[::-1] - self.b - self.down)


def stream_times(problem: Problem, unit: float) -> Iterator[StreamTimes]:
    """The streams of ``problem``, with times in units of ``unit``."""
    costs = Costs.of(problem)
    f, b, w = costs.durations[:3] / unit
    for stream in streams_of(problem):
        j = stream[0]
        ranks = costs.owner[:, j].tolist()
        ways = costs.into_f[:, j] / unit, costs.into_b[:, j] / unit
        yield StreamTimes(len(stream), ranks, f, b, w, *ways)


class ClassMoments:
    """The moments and counts of a class (one stage of a stream), as variables of the MILP."""

    def __init__(self, solver: Any, times: StreamTimes, stage: int, sizes: Sequence[float]) -> None:
        self.count, self.rank = times.count, times.ranks[stage]
        self.f, self.b, self.w = (float(each[stage]) for each in (times.f, times.b, times.w))
        self.turn, (self.m_b, self.m_w) = float(times.turn[stage]), sizes
        infinity = solver.infinity()
        self.first_f, self.first_b, self.last_f, self.last_b = (
            solver.NumVar(0.0, infinity, "") for _ in range(4)
        )
        self.ahead, self.pending, self.weights, self.early = (
            solver.IntVar(0, self.count, "") for _ in range(4)
        )
        self._keep_apart(solver.Add)

    def _keep_apart(self, add: Any) -> None:
        m = self.count
        add(self.first_b >= self.first_f + self.turn)
        add(self.last_b >= self.last_f + self.turn + self.b)
        add(self.last_f >= self.first_f + (m - 1) * self.f)
        add(self.last_b >= self.first_b + m * self.b)
        if m * self.m_b > 1:
            add(self.last_f >= self.first_b + self.b)
        add(self.pending + self.weights <= m)
        add(self.early <= self.pending + self.weights)

    @property
    def late(self) -> Any:
        """The number of W's after the rank's last B."""
        return self.pending + self.weights - self.early


class RankMoments:
    """The moments of a rank, as variables of the MILP.

    ``streams``: for each stream, its classes on the rank, the lowest stage first.
    """

    def __init__(self, solver: Any, streams: Sequence[Sequence[ClassMoments]]) -> None:
        self._solver, self._streams = solver, streams
        self._classes = [each for stream in streams for each in stream]
        infinity = solver.infinity()
        self.starts, self.first_b, self.last_f, self.last_b, self.ends = (
            solver.NumVar(0.0, infinity, "") for _ in range(5)
        )
        self._pick([stream[0] for stream in streams], "first_f", self.starts, first=True)
        self._first = self._pick([s[-1] for s in streams], "first_b", self.first_b, first=True)
        self._last = self._pick([s[-1] for s in streams], "last_f", self.last_f, first=False)
        self._lowest = self._pick([s[0] for s in streams], "last_b", self.last_b, first=False)
        self._keep_apart()
        self._keep_memory()

    def _pick(
        self, of: Sequence[ClassMoments], name: str, moment: Any, *, first: bool
    ) -> list[Any]:
        """Make ``moment`` the first (or last) of the moments called ``name`` of the classes ``of``.

        Returns a binary variable for each class, which is 1 for the chosen one; just 1 if there is
        only one class.
        """
        add, alone = self._solver.Add, len(of) == 1
        picked = [1 if alone else self._solver.IntVar(0, 1, "") for _ in of]
        if not alone:
            add(sum(picked) == 1)
        for each, chosen in zip(of, picked, strict=True):
            early, late = (moment, getattr(each, name))[:: 1 if first else -1]
            add(early <= late)
            add(late - early <= 1 - chosen)  # big-M: no span exceeds the ceiling, 1 in this unit
        return picked

    def _sum(self, of: Any) -> Any:
        return sum(of(each) for each in self._classes)

    def _keep_apart(self) -> None:
        add, total = self._solver.Add, self._sum
        own = sum(p * s[-1].f for p, s in zip(self._last, self._streams, strict=True))
        left = total(lambda c: (c.count - c.ahead) * c.f)
        add(self.first_b >= self.starts + total(lambda c: c.ahead * c.f))
        add(self.last_f >= self.starts + total(lambda c: c.count * c.f) - own)
        if total(lambda c: c.count * c.m_b) > 1:
            done = total(lambda c: (c.count - c.pending) * (c.b + c.w) - c.weights * c.w)
            add(self.last_f >= self.first_b + left + done - own)
        add(self.last_b >= self.last_f + own + total(lambda c: c.pending * c.b + c.early * c.w))
        run = total(lambda c: c.count * (c.b + c.w) - c.late * c.w)
        add(self.last_b >= self.first_b + left + run)
        add(self.ends >= self.last_b + total(lambda c: c.late * c.w))
        for each in self._classes:
            add(self.ends >= each.last_b + each.w)

    def _keep_memory(self) -> None:
        add, total = self._solver.Add, self._sum
        for stream, first, last in zip(self._streams, self._first, self._last, strict=True):
            for each in stream:
                add(each.ahead >= first)
                add(each.pending >= last)
        add(total(lambda c: c.m_b * c.ahead) <= 1)
        add(total(lambda c: c.m_b * c.pending + c.m_w * c.weights) <= 1)
        lowest = [s[0] for s in self._streams]
        own = sum((c.m_b - c.m_w) * p for c, p in zip(lowest, self._lowest, strict=True))
        add(own + total(lambda c: c.m_w * c.late) <= 1)
        for each, chosen in zip(lowest, self._lowest, strict=True):
            add(each.late >= chosen)
        sizes = {each.m_b for each in self._classes}
        if len(sizes) == 1 and 0 < (size := sizes.pop()) <= 1:
            places = float(counts_within(1.0, size, np.inf))
            add(total(lambda c: c.ahead) <= places)
            add(total(lambda c: c.pending) <= places)

    def found_span(self) -> float:
        """The time from R to E in the solution."""
        return float(self.ends.solution_value() - self.starts.solution_value())

    def span(self, add: Any, model: RankModel, unit: float) -> None:
        """Add: the memory-time of the microbatches fits into limit times span."""
        if 0 < model.limit < np.inf:
            add(self.last_b - self.starts >= held_until_last_backward(model) / unit)
            add(self.ends - self.starts >= model.holding_span() / unit)


def rank_relaxation(problem: Problem, ceiling: float, budget: Budget) -> Bound | None:
    """A lower bound on the cost of every schedule, or None if the solver is missing.

    ``ceiling``: the cost of some schedule, or more; the bound is never above it. Stages must be
    neither recomputed nor offloaded, and microbatches equal.
    """
    solver = new_solver()
    if solver is None or ceiling <= 0.0:
        return None
    bare = least_times(unfused(problem))
    streams = [_stream(solver, bare, times) for times in stream_times(bare, ceiling)]
    cost = solver.NumVar(0.0, 1.0, "C")
    ranks = {}
    for rank, model in rank_models(bare):
        own = [[each for each in stream if each.rank == rank] for stream in streams]
        ranks[rank] = RankMoments(solver, [stream for stream in own if stream])
        ranks[rank].span(solver.Add, model, ceiling)
        starts = ranks[rank].starts if problem.objective is Objective.PERIOD else 0.0
        solver.Add(cost >= ranks[rank].ends - starts)
    share, solved = least_of(solver, cost, budget, len(ranks))
    if not solved:
        return Bound(share * ceiling, "rank-moments", WORDS)
    value, rank = share * ceiling, max(ranks, key=lambda rank: ranks[rank].found_span())
    work = float(busy(bare)[rank])

    def numbers() -> list[str]:
        more = float(Costs.of(problem).m_b.max())
        roomier = replace(problem, memory_limit=tuple(x + more for x in problem.memory_limit))
        then = rank_relaxation(roomier, ceiling, Budget(SECONDS))
        return [
            f"rank {rank} computes for {duration(work)} and spans more: microbatches that pass it "
            "first and last pass other ranks too, and its memory holds few between",
            "with memory for one M_B more on each rank the same argument gives "
            f"{duration(min(value, then.value if then else value))}",
        ]

    return Bound(value, "rank-moments", WORDS, rank, numbers)


def rank_models(problem: Problem) -> Iterator[tuple[int, RankModel]]:
    """Yield each rank that runs anything, with its model."""
    if problem.placement.kind is PlacementKind.BIDIRECTIONAL:
        yield from rank_visits(problem)
    else:
        yield from ((host.rank, host) for host in GeneralPlacement.of(problem).hosts)


def _stream(solver: Any, problem: Problem, times: StreamTimes) -> list[ClassMoments]:
    """The classes of a stream, with the constraints from each stage to the next."""
    costs = Costs.of(problem)
    held = 2.0 * problem.microbatches * float(costs.m_b.sum())  # a larger limit is as good as none
    limit = np.minimum(costs.limit * (1 + ROUNDING), held)[list(times.ranks)]
    sizes = np.stack([costs.m_b, costs.m_w], axis=1) / np.where(limit > 0, limit, 1.0)[:, None]
    found = [ClassMoments(solver, times, s, row) for s, row in enumerate(sizes.tolist())]
    for s, (each, later) in enumerate(pairwise(found)):
        down, up = each.f + float(times.down[s + 1]), float(times.up[s])
        solver.Add(later.first_f >= each.first_f + down)
        solver.Add(later.last_f >= each.last_f + down)
        solver.Add(each.first_b >= later.first_b + later.b + up)
        solver.Add(each.last_b >= later.last_b + each.b + up)
    return found
