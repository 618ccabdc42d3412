"""A lower bound from a small MILP: the moments of a rank with several stages, or of two copies.

The counterpart of :mod:`..milp_relaxation` for any map of stages to ranks. A *class* is a stage of
the microbatches that run every stage on the same ranks; these are a stream, of which there are two
where they go both ways. Class u has M_u microbatches and the moments of a stage with a rank of its
own: S_u its first F starts, y_u its first B, t_u its last F, V_u its last B ends. Along a stream::

    S_(u+1) >= S_u + f_u + down      y_u >= y_(u+1) + b_(u+1) + up      y_u >= S_u + turn_u
    t_(u+1) >= t_u + f_u + down      V_u >= V_(u+1) + up + b_u          V_u >= t_u + turn_u + b_u

as the first and the last of each passed the next stage, or go on to it. Moreover t_u >= S_u +
(M_u - 1) f_u, V_u >= y_u + M_u b_u, and t_u >= y_u + b_u where memory does not hold M_u of u.

A rank's moments are those of the classes on it::

    R ── n F's ── Y ── F's, B's, W's ── T ── one F, a B's, r W's ── L ── W's ── E

R = min S_u, the rank's first op; Y = min y_u; T = max t_u; L = max V_u. A stream's lowest class on
the rank is its first and last there, and its highest has its first B and last F, so with one stream
each is known; with two, binaries choose. n_u F's come before Y, whose microbatch is one of each
class of its stream; at T a_u of u have B and W to come, that of the last F itself among them, in
each class of its stream, and q_u have W alone; of the W's left at T r_u run before L. So::

    Y >= R + sum n f                                          sum n M_B <= limit
    T >= Y + sum (M - n) f + (M - a) b + (M - a - q) w - f_T   (memory does not hold all F's)
    T >= R + sum M f - f_T                                    sum a M_B + q M_W <= limit
    L >= T + f_T + sum a b + r w                              r <= a + q
    L >= Y + sum (M - n) f + M b + (M - a - q + r) w
    E >= L + sum (a + q - r) w                                E >= V_u + w_u

and as the last B runs its M_B, and M_W of the W's left but its own, fit into the limit. Where all
M_B of a rank are equal, as many fit as whole ones do. What microbatches hold, for as long as they
hold it, has room from R to L and to E (:func:`..rank_model.held_until_last_backward`). The cost is
at least E - R (period) or E, S >= 0 (makespan): the least is a bound.
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
    """The times of a stream of ``count`` microbatches, by stage, (S,), and its ``ranks``.

    ``down``, ``up``: delays into F from the stage before, into B from the one behind.
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
        """From the start of F to that of B, at least."""
        passed = self.f + self.b + self.down + self.up
        return np.asarray(passed[::-1].cumsum()[::-1] - self.b - self.down)


def stream_times(problem: Problem, unit: float) -> Iterator[StreamTimes]:
    """The streams, in units of ``unit``."""
    costs = Costs.of(problem)
    f, b, w = costs.durations[:3] / unit
    for stream in streams_of(problem):
        j = stream[0]
        ranks = costs.owner[:, j].tolist()
        ways = costs.into_f[:, j] / unit, costs.into_b[:, j] / unit
        yield StreamTimes(len(stream), ranks, f, b, w, *ways)


class ClassMoments:
    """The moments and counts of a stage of a stream."""

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
        """The number of W's behind the rank's last B."""
        return self.pending + self.weights - self.early


class RankMoments:
    """The moments of a rank, by ``streams``: its classes, the lowest stage first."""

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
        """``moment`` is the first or last of those called ``name``; which of them, by stream."""
        add, alone = self._solver.Add, len(of) == 1
        picked = [1 if alone else self._solver.IntVar(0, 1, "") for _ in of]
        if not alone:
            add(sum(picked) == 1)
        for each, chosen in zip(of, picked, strict=True):
            early, late = (moment, getattr(each, name))[:: 1 if first else -1]
            add(early <= late)
            add(late - early <= 1 - chosen)  # a span is at most the ceiling, 1 in our unit
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
        """From R to E in the solution."""
        return float(self.ends.solution_value() - self.starts.solution_value())

    def span(self, add: Any, model: RankModel, unit: float) -> None:
        """Keeps what microbatches hold, for as long as they hold it, within memory."""
        if 0 < model.limit < np.inf:
            add(self.last_b - self.starts >= held_until_last_backward(model) / unit)
            add(self.ends - self.starts >= model.holding_span() / unit)


def rank_relaxation(problem: Problem, ceiling: float, budget: Budget) -> Bound | None:
    """A bound on the cost of every schedule; ``ceiling`` is the cost of one, and at least that.

    None where there is no solver. Stages are neither recomputed nor offloaded, microbatches alike.
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
    """The ranks that run anything."""
    if problem.placement.kind is PlacementKind.BIDIRECTIONAL:
        yield from rank_visits(problem)
    else:
        yield from ((host.rank, host) for host in GeneralPlacement.of(problem).hosts)


def _stream(solver: Any, problem: Problem, times: StreamTimes) -> list[ClassMoments]:
    """The classes of a stream, and what its microbatches' way says of them."""
    costs = Costs.of(problem)
    held = 2.0 * problem.microbatches * float(costs.m_b.sum())  # more is as good as no limit
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
