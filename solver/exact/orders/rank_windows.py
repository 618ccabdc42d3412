"""A bound from all orders of one rank: of few microbatches first, of more with what these prove.

The other ranks are ways that a microbatch takes
(:mod:`...bounds.several_stages.general_placement`), so that a model of :mod:`.general_interleaving`
has the ops of one rank alone. Let l be its lowest stage, and E(m) the least time from the start of
F(l) of a microbatch to the end of B(l) of the m-th after it.

**Windows.** Microbatches are named by their turn (:mod:`.rank_orders`). In any schedule j, ..., j+m
alone keep all dependencies, the order of each class, one op at a time and memory; W's that they
need not have run may come later. So what is proven of m + 1 microbatches alone, E(m) > t, holds for
all windows of so many microbatches of a schedule of more: it is a constraint on F(l, j) and
B(l, j+m) there. A refutation would have to be found again for each j without it. Starts are whole
ticks, rounded down, here and there, so that no constraint loses anything.

**Cost.** E(M - 1) is what the rank takes from its first op to its last B; then see
:meth:`...bounds.several_stages.general_placement.GeneralPlacement.way_back`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from ortools.sat.python import cp_model

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.model.ops import OpKind
from pipeloom.ir.units import counted

from ...bounds.several_stages.general_placement import GeneralPlacement
from ...bounds.several_stages.host_model import HostModel
from ...core.bound import Bound
from ...core.incumbent import Incumbent
from ...core.relaxations import unfused
from ...core.stopping import OPS_A_SECOND
from ...core.worker_threads import Pieces
from ..cp_sat_thread import CpSatThread
from ..integer_time import Ticks
from .general_interleaving import (
    KINDS,
    LITERALS_A_SECOND,
    PARAMETERS,
    UNIT,
    Apart,
    Blocks,
    RankConstraints,
    rank_orders,
)
from .interleaving import BITS
from .rank_orders import BACKWARD, FORWARD, WEIGHT, OpClass, OpenOrders

WORDS = "all orders of one rank's ops are searched, the other ranks count as ways"
MOST_HELD = 3.5  # microbatches that fit into a rank's memory with all their chunks, at most
TURNS = 3.0  # times as many microbatches as that are in the longest window that is not all
OPS = 600  # F's and B's of a model at most: it is built in the square of their number
QUESTIONS, ALL_QUESTIONS = 6, 8  # about one window, about all microbatches
CLOSE = 0.006  # relative distance of what is refuted and what is not, from which on none is asked
SECONDS, ALL_SECONDS = 0.2, 2.0  # of a core for a question about one window, about all microbatches
SHARE = 0.5  # of the time left for windows that are not all, at most
UNANSWERED = 2  # questions about one window, after which there are no more


class RankWindow:
    """The model of ``host`` with ``orders``, for at most ``most`` ticks until its last B ends."""

    until = BACKWARD

    def __init__(self, windows: RankWindows, orders: OpenOrders, most: int) -> None:
        self.cp, self._windows, self._most = cp_model.CpModel(), windows, most
        self.blocks: Blocks = {}
        self.sizes: Counter[int] = Counter()
        (self._count,) = orders.counts
        late = self._count * sum(windows.times[WEIGHT].values())
        self._start = {
            (each, k): self.cp.new_int_var(0, most + late * (each.kind is WEIGHT), "")
            for each, k in orders.ops(*KINDS)
        }
        self.first = self.start(windows.enters, 0)
        self.starts_at_once(windows.enters, 0)
        self._ways()
        self._learned()
        RankConstraints(self, orders).constrain()

    def takes(self, each: OpClass) -> int:
        return self._windows.times[each.kind][each.stage]

    def start(self, each: OpClass, k: int) -> cp_model.IntVar:
        return self._start[each, k]

    def begins(self, rank: OpenOrders) -> cp_model.IntVar:
        return self.first

    def end(self, begins: cp_model.IntVar) -> cp_model.LinearExpr:
        return self._most + 0 * begins

    def starts_at_once(self, each: OpClass, k: int) -> None:
        self.cp.add(self.start(each, k) == 0)

    def until_last(self, solution: cp_model.CpSolverSolutionCallback) -> int:
        leaves = self._windows.leaves
        return int(solution.value(self.start(leaves, self._count - 1))) + self.takes(leaves)

    def _ways(self) -> None:
        for a, b, way in self._windows.ways:
            for k in range(self._count):
                self.cp.add(self.start(b, k) >= self.start(a, k) + way)
        for (each, k), start in self._start.items():
            if k > 0:
                self.cp.add(start >= self.start(each, k - 1) + self.takes(each))

    def _learned(self) -> None:
        enters, leaves = self._windows.enters, self._windows.leaves
        for m, least in self._windows.least.items():
            apart = least - self.takes(leaves)
            for j in range(self._count - m):
                self.cp.add(self.start(leaves, j + m) >= self.start(enters, j) + apart)


class RankWindows:
    """``least``: E(m) in ticks, at least, for the m that have been asked about."""

    def __init__(self, best: Incumbent, placed: GeneralPlacement, host: HostModel) -> None:
        self.host, self._best, self._placed = host, best, placed
        low, stages = host.lowest, host.stages
        costs = Costs.of(unfused(best.problem))
        delays = (costs.durations[:3].ravel(), costs.into_f.ravel(), costs.into_b.ravel())
        self.ticks = Ticks.of(np.unique(np.concatenate(delays)).tolist(), 2 * best.cost, bits=BITS)
        down = self.ticks.down
        self.times = {
            kind: {s: down(float(costs.durations[kind, s])) for s in stages} for kind in KINDS
        }
        self.ways = [(a, b, down(way)) for a, b, way in self._route()]
        self.enters, self.leaves = OpClass(FORWARD, low, 0), OpClass(BACKWARD, low, 0)
        self.least = {0: down(placed.turn(low, low)) + self.times[BACKWARD][low]}
        self.all = host.count - 1

    def _route(self) -> Iterator[tuple[OpClass, OpClass, float]]:
        """From op to op of a microbatch on the rank, and the least time between their starts."""
        placed, stages = self._placed, self.host.stages

        def of(kind: OpKind, stage: int) -> OpClass:
            return OpClass(kind, stage, 0)

        for a, b in pairwise(stages):
            yield of(FORWARD, a), of(FORWARD, b), float(placed.down[b] - placed.down[a])
            yield of(BACKWARD, b), of(BACKWARD, a), float(placed.back[a] - placed.back[b])
        top = stages[-1]
        yield of(FORWARD, top), of(BACKWARD, top), placed.turn(top, top)
        for i, stage in enumerate(stages):
            yield of(BACKWARD, stage), of(WEIGHT, stage), float(self.host.b[i])

    def known(self, m: int) -> int:
        """The least for windows of ``m`` that those of fewer prove."""
        return max(least for k, least in self.least.items() if k <= m)

    def apart(self) -> Iterator[Apart]:
        """Yields what windows prove of any schedule's starts, in the problem's unit."""
        for m, least in self.least.items():
            way = (least - self.times[BACKWARD][self.host.lowest] - 1) / self.ticks.per_unit
            yield Apart(self.enters, self.leaves, m, way)

    @property
    def bound(self) -> Bound:
        """The bound on the cost that the longest window proves."""
        m = max(self.least)
        until = max(0.0, (self.least[m] - (not self.ticks.exact)) / self.ticks.per_unit)
        why = f"of {counted(m + 1, 'microbatch')} no order of its ops takes less"
        return self._placed.way_back("rank-orders", WORDS, self.host, until, why)

    def ask(self, m: int, most: int, seconds: float) -> int | None:
        """Whether a window of ``m`` can take ``most`` ticks: what one takes; a tick more where none
        can; None where there is no answer within so many seconds of a core."""
        problem = replace(self._best.problem, microbatches=m + 1)
        orders = rank_orders(problem)[self.host.rank]
        model, unit = RankWindow(self, orders, most), UNIT + orders.literals() / LITERALS_A_SECOND
        budget = self._best.budget()
        parameters = {
            "max_time_in_seconds": budget.time.left,
            "max_deterministic_time": min(seconds, budget.work.ops / OPS_A_SECOND) / unit,
            "num_workers": 1,
            "linearization_level": 0,
            **PARAMETERS,
        }
        found: int | None = None
        with CpSatThread(model.cp, model.until_last, **parameters) as search:
            while (news := search.next(self._best.interrupted)) is not None:
                found = news if isinstance(news, int) else found
        self._best.work.spend(search.work * unit * OPS_A_SECOND)
        return most + 1 if search.refuted else found

    def grow(self, m: int) -> Pieces:
        """Asks about windows of ``m``, as far above what is known as the rank runs one more."""
        step = sum(self.times[kind][s] for kind in (FORWARD, BACKWARD) for s in self.host.stages)
        yield from self._climb(m, self.known(m), step, QUESTIONS, SECONDS)

    def finish(self) -> Pieces:
        """Asks about all microbatches, halfway to the best cost and on."""
        low = max(self.known(self.all), self._ticks_of(self._best.bound.value))
        step = (self._ticks_of(self._best.cost) - low) // 2
        yield from self._climb(self.all, low, step, ALL_QUESTIONS, ALL_SECONDS)

    def _ticks_of(self, cost: float) -> int:
        none = self._placed.way_back("", "", self.host, 0.0, "").value
        return max(0, self.ticks.down(cost - none))

    def _climb(self, m: int, low: int, step: int, questions: int, seconds: float) -> Pieces:
        """A target that is refuted is followed by one twice as far up, or halfway to the least that
        is not; the bound is taken."""
        if 2 * len(self.host.stages) * (m + 1) > OPS:
            return
        high, met, unanswered = self._ticks_of(self._best.cost), False, 0
        for _ in range(questions):
            if high - low <= CLOSE * high or unanswered >= UNANSWERED or self._best.over():
                break
            target = (low + high) // 2 if met else min(low + step, high)
            found = self.ask(m, target, seconds)
            if found is not None and found > target:
                low, step = target, 2 * step
                self.least[m] = target + 1
                self._best.raise_bound(self.bound)
            else:
                high, met = target if found is None else found, True
                unanswered += found is None
            yield


def bound_by_windows(best: Incumbent) -> Generator[None, None, Sequence[Apart]]:
    """Takes what windows of one rank prove: every rank's at first, half of them go on each time
    that windows are twice as long; then what all microbatches prove, of the one that promises most.

    Asks ranks alone that hold few microbatches. Microbatches are alike, stages on their ranks,
    neither recomputed nor offloaded."""
    placed = GeneralPlacement.of(unfused(best.problem))
    ranks = [
        RankWindows(best, placed, host)
        for host in placed.hosts
        if host.limit <= MOST_HELD * float(host.m_b.sum()) > 0
    ]
    if not ranks or best.over():
        return ()
    held = max(each.host.limit / float(each.host.m_b.sum()) for each in ranks)
    asked, end = tuple(ranks), best.budget(SHARE).time
    for m in range(1, min(round(TURNS * held), best.problem.microbatches - 2) + 1):
        for each in ranks if not end() else ():
            yield from each.grow(m)
        if m & (m - 1) == 0 and m > 1:
            ranks.sort(key=lambda each: -each.bound.value)
            del ranks[(len(ranks) + 1) // 2 :]
    yield from max(ranks, key=lambda each: each.bound.value).finish()
    return [each for rank in asked for each in rank.apart()]
