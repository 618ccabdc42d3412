"""A lower bound from all orders of the ops of one rank, or of a few, by CP-SAT.

The other ranks are replaced by the least times that a microbatch needs there
(:mod:`...bounds.several_stages.general_placement`), so that a model as in
:mod:`.general_interleaving` has the ops of only one rank. Let l be the rank's lowest stage, and
E(m) the least time from the start of F(l) of a microbatch to the end of B(l) of the m-th one after
it.

**Windows.** Microbatches are numbered by position (:mod:`.rank_orders`). In any schedule, the ops
of microbatches j, ..., j+m alone satisfy all dependencies, the order of each class, no-overlap and
memory; W's that are not needed in time may come later. So a bound E(m) > t, proven for m + 1
microbatches alone, holds for every window of m + 1 successive microbatches in a larger schedule,
where it becomes a constraint on F(l, j) and B(l, j+m). Without it the solver would have to find the
same refutation for each j. Starts are whole ticks, rounded down, in both models, so the constraint
is valid there.

**Several ranks.** The model may also have the ops of other ranks whose lowest stage is above l:
their first op is an F of it, and after their last B there is the time of the way back to l. What is
proven for windows of one rank becomes a constraint there, too.

**Cost.** E(M - 1) bounds the time from the rank's first op to the end of its last B. The bound on
the cost follows by :meth:`...bounds.several_stages.general_placement.GeneralPlacement.way_back`.
"""

from __future__ import annotations

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
from .general_interleaving import KINDS, PARAMETERS, Apart, RankConstraints, rank_orders, unit_of
from .interleaving import BITS
from .rank_orders import BACKWARD, FORWARD, WEIGHT, OpClass, OpenOrders

WORDS = "all orders of one rank's ops are searched, the other ranks count as ways"
WORDS_OF_MORE = "all orders of several ranks' ops are searched, any other ranks count as ways"
MOST_HELD = 3.5  # only for ranks whose memory holds at most this many whole microbatches
TURNS = 3.0  # longest window but the last, in multiples of the microbatches that memory holds
OPS = 600  # most F's and B's in a model, whose construction takes quadratic time
QUESTIONS, ALL_QUESTIONS = 6, 8  # questions about one window; about all microbatches
CLOSE = 0.006  # relative distance of refuted and open targets at which the questions end
# core seconds of a question about one window; about all microbatches
SECONDS, ALL_SECONDS = 0.2, 2.0
SHARE = 0.5  # share of the time left for windows of one rank, without all microbatches
# for several ranks: most literals, and most ops of the problem
WIDE_LITERALS, WIDE_OPS = 4_000, 3_000
WIDE_HELD = 0.61  # several ranks only if some memory holds at most this share of P microbatches
WIDE_SHARE = 0.5  # share of the time left for windows of several ranks
FOLLOW_QUESTIONS, FOLLOW_SECONDS = 6, 2.0  # for one window of several ranks
SPARSE = 8  # up to this length all windows are asked about
SLOWER = 1.3  # estimated factor from the time of one length to that of the next
STRIDE, PARTS = 3, 12  # E is extrapolated over this many windows; precision, as a part of the step
UNANSWERED = 2  # undecided questions after which a window is given up


class RankWindow:
    """The model of the ranks with ``orders``, whose last B ends within ``most`` ticks."""

    until = BACKWARD

    def __init__(self, windows: RankWindows, orders: Sequence[OpenOrders], most: int) -> None:
        self.cp, self._windows, self._most = cp_model.CpModel(), windows, most
        (self._count,) = orders[0].counts
        late = self._count * sum(windows.times[WEIGHT].values())
        self._start = {
            (each, k): self.cp.new_int_var(0, most + late * (each.kind is WEIGHT), "")
            for rank in orders
            for each, k in rank.ops(*KINDS)
        }
        self.cp.add(self.start(windows.enters, 0) == 0)
        self._ways()
        self._learned()
        for rank in orders:
            RankConstraints(self, rank).constrain()

    def takes(self, each: OpClass) -> int:
        return self._windows.times[each.kind][each.stage]

    def start(self, each: OpClass, k: int) -> cp_model.IntVar:
        return self._start[each, k]

    def begins(self, rank: OpenOrders) -> cp_model.IntVar:
        return self.start(OpClass(FORWARD, rank.hosted[0][0], 0), 0)

    def end(self, rank: OpenOrders, begins: cp_model.IntVar) -> cp_model.LinearExpr:
        return self._most - self._windows.after(rank.hosted[0][0]) + 0 * begins

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
        for each in (self._windows, *self._windows.taught):
            for m, least in each.least.items():
                apart = least - self.takes(each.leaves)
                for j in range(self._count - m):
                    self.cp.add(
                        self.start(each.leaves, j + m) >= self.start(each.enters, j) + apart
                    )


class RankWindows:
    """Bounds on windows of the rank ``host``, together with the ranks ``beside``.

    ``least``: lower bounds on E(m) in ticks, for each m that has been asked about. ``spent``: work
    of the questions, in simulated ops. ``taught``: windows of one rank, whose bounds are
    constraints.
    """

    def __init__(
        self,
        best: Incumbent,
        placed: GeneralPlacement,
        host: HostModel,
        beside: Sequence[HostModel] = (),
        taught: Sequence[RankWindows] = (),
    ) -> None:
        self.taught = taught
        self.host, self._best, self._placed = host, best, placed
        self.hosts = host, *beside
        low = host.lowest
        self._stages = stages = sorted(s for each in self.hosts for s in each.stages)
        costs = Costs.of(unfused(best.problem))
        delays = (costs.durations[:3].ravel(), costs.into_f.ravel(), costs.into_b.ravel())
        times = np.unique(np.concatenate(delays)).tolist()
        own = Ticks.of(times, 2 * best.cost, bits=BITS)
        self.ticks: Ticks = taught[0].ticks if taught else own
        down = self.ticks.down
        self.times = {
            kind: {s: down(float(costs.durations[kind, s])) for s in stages} for kind in KINDS
        }
        self.ways = [(a, b, down(way)) for a, b, way in self._route()]
        self.enters, self.leaves = OpClass(FORWARD, low, 0), OpClass(BACKWARD, low, 0)
        self.least = {0: down(placed.turn(low, low)) + self.times[BACKWARD][low]}
        self.all, self.answered, self.spent = host.count - 1, True, 0.0

    def _route(self) -> Iterator[tuple[OpClass, OpClass, float]]:
        """Yield pairs of successive ops of a microbatch and the least time between their starts."""
        placed, stages = self._placed, self._stages

        def of(kind: OpKind, stage: int) -> OpClass:
            return OpClass(kind, stage, 0)

        for a, b in pairwise(stages):
            yield of(FORWARD, a), of(FORWARD, b), float(placed.down[b] - placed.down[a])
            yield of(BACKWARD, b), of(BACKWARD, a), float(placed.back[a] - placed.back[b])
        top = stages[-1]
        yield of(FORWARD, top), of(BACKWARD, top), placed.turn(top, top)
        for stage in stages:
            yield of(BACKWARD, stage), of(WEIGHT, stage), float(placed.b[stage])

    def after(self, stage: int) -> int:
        """The least time of a microbatch from the end of B(stage) to the end of B(l), in ticks."""
        back, low = self._placed.back, self.host.lowest
        way = self.ticks.down(float(back[low] - back[stage]))
        return way + self.times[BACKWARD][low] - self.times[BACKWARD][stage]

    def known(self, m: int) -> int:
        """The lower bound on E(m) that windows of at most ``m`` prove."""
        return max(least for k, least in self.least.items() if k <= m)

    def apart(self) -> Iterator[Apart]:
        """Yield what windows prove about any schedule, as precedences in the problem's unit."""
        for m, least in self.least.items():
            way = (least - self.times[BACKWARD][self.host.lowest] - 1) / self.ticks.per_unit
            yield Apart(self.enters, self.leaves, m, way)

    @property
    def bound(self) -> Bound:
        """The lower bound on the cost that the longest window proves."""
        m = max(self.least)
        until = max(0.0, (self.least[m] - (not self.ticks.exact)) / self.ticks.per_unit)
        whose = "its" if len(self.hosts) == 1 else "these ranks'"
        why = f"of {counted(m + 1, 'microbatch')} no order of {whose} ops takes less"
        words = WORDS if len(self.hosts) == 1 else WORDS_OF_MORE
        return self._placed.way_back("rank-orders", words, self.host, until, why)

    def ask(self, m: int, most: int, seconds: float) -> int | None:
        """Ask whether a window of ``m`` can take ``most`` ticks, in at most ``seconds`` of a core.

        Returns the ticks of a solution, ``most + 1`` if there is none, or None if it was not
        decided.
        """
        problem = replace(self._best.problem, microbatches=m + 1)
        every = rank_orders(problem)
        orders = [every[each.rank] for each in self.hosts]
        model = RankWindow(self, orders, most)
        unit = unit_of(sum(rank.literals() for rank in orders))
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
        ops = search.work * unit * OPS_A_SECOND
        self.spent += ops
        self._best.work.spend(ops)
        return most + 1 if search.refuted else found

    def grow(self, m: int) -> Pieces:
        """Ask about windows of ``m``; the first step is the F's and B's of one more microbatch."""
        yield from self._climb(m, self.known(m), self._one_more(), QUESTIONS, SECONDS)

    def follow(self, m: int) -> Pieces:
        """Ask about windows of ``m`` near what shorter ones suggest.

        If too much was not decided, ``answered`` is set to False: longer windows are not worth
        asking about.
        """
        low, high, met, unanswered = self.known(m), self._ticks_of(self._best.cost), False, 0
        last = max(self.least)
        since = max((k for k in self.least if k <= last - STRIDE), default=0)
        grown = (self.least[last] - self.least[since]) / max(1, last - since)
        step = max(1, int((grown or self._one_more()) * (m - last)))
        target, up = low + step, max(1, step // 4)
        for _ in range(FOLLOW_QUESTIONS):
            if high - low <= step // PARTS or unanswered >= UNANSWERED or self._best.over():
                break
            found = self.ask(m, min(target, high), FOLLOW_SECONDS)
            if self._is_refuted(m, target, found):
                low, up = target, 2 * up
            else:
                high, met = target if found is None else found, True
                unanswered += found is None
            target = (low + high) // 2 if met else low + up // 2
            yield
        self.answered = unanswered < UNANSWERED

    def _is_refuted(self, m: int, target: int, found: int | None) -> bool:
        """Whether ``found`` refutes ``target`` for windows of ``m``; if so, raises the bound."""
        if found is None or found <= target:
            return False
        self.least[m] = target + 1
        self._best.raise_bound(self.bound)
        return True

    def _one_more(self) -> int:
        return sum(self.times[kind][s] for kind in (FORWARD, BACKWARD) for s in self.host.stages)

    def finish(self) -> Pieces:
        """Ask about all microbatches, from halfway between bound and best cost."""
        low = max(self.known(self.all), self._ticks_of(self._best.bound.value))
        step = (self._ticks_of(self._best.cost) - low) // 2
        yield from self._climb(self.all, low, step, ALL_QUESTIONS, ALL_SECONDS)

    def _ticks_of(self, cost: float) -> int:
        none = self._placed.way_back("", "", self.host, 0.0, "").value
        return max(0, self.ticks.down(cost - none))

    def _climb(self, m: int, low: int, step: int, questions: int, seconds: float) -> Pieces:
        """Ask about rising targets for windows of ``m``, and raise the bound.

        After a target that is refuted the step doubles. After one that is not, targets are halfway
        to it.
        """
        if 2 * len(self.host.stages) * (m + 1) > OPS:
            return
        high, met, unanswered = self._ticks_of(self._best.cost), False, 0
        for _ in range(questions):
            if high - low <= CLOSE * high or unanswered >= UNANSWERED or self._best.over():
                break
            target = (low + high) // 2 if met else min(low + step, high)
            found = self.ask(m, target, seconds)
            if self._is_refuted(m, target, found):
                low, step = target, 2 * step
            else:
                high, met = target if found is None else found, True
                unanswered += found is None
            yield


def bound_by_windows(best: Incumbent) -> Generator[None, None, Sequence[Apart]]:
    """Raise the bound by windows; returns what they prove as precedences.

    First windows of single ranks, of rising lengths; half of the ranks are dropped each time the
    length doubles. Then windows of several ranks at once. The most promising rank is also asked
    about all microbatches: at once if its lowest stage is the highest of all ranks (where a
    placement folds), otherwise only if the windows of several ranks do not reach that length.

    Only ranks that hold few microbatches are asked about. Microbatches must be equal, and stages on
    one rank each, neither recomputed nor offloaded.
    """
    placed = GeneralPlacement.of(unfused(best.problem))
    asked = tuple(
        RankWindows(best, placed, host)
        for host in placed.hosts
        if host.limit <= MOST_HELD * float(host.m_b.sum()) > 0
    )
    if best.over():
        return ()
    narrow = yield from _grow(best, asked)
    folds = narrow is not None and narrow.host is max(placed.hosts, key=lambda each: each.lowest)
    if narrow is not None and folds:
        yield from narrow.finish()
    wide = several_ranks(best, placed, asked)
    if wide is not None:
        yield from _follow(best, wide)
    if narrow is not None and not folds and (wide is None or max(wide.least) < wide.all):
        yield from narrow.finish()
    return [each for rank in (*asked, *((wide,) if wide else ())) for each in rank.apart()]


def _grow(
    best: Incumbent, asked: Sequence[RankWindows]
) -> Generator[None, None, RankWindows | None]:
    """Ask about windows of single ranks; returns the most promising rank."""
    if not asked:
        return None
    ranks, end = list(asked), best.budget(SHARE).time
    held = max(each.host.limit / float(each.host.m_b.sum()) for each in ranks)
    for m in range(1, min(round(TURNS * held), best.problem.microbatches - 2) + 1):
        for each in ranks if not end() else ():
            yield from each.grow(m)
        if m & (m - 1) == 0 and m > 1:
            ranks.sort(key=lambda each: -each.bound.value)
            del ranks[(len(ranks) + 1) // 2 :]
    return max(ranks, key=lambda each: each.bound.value)


def several_ranks(
    best: Incumbent, placed: GeneralPlacement, taught: Sequence[RankWindows] = ()
) -> RankWindows | None:
    """Windows of all ranks, or of two: that of the first stage, and a last one.

    The second is the rank whose lowest stage is highest. None if these have too many orders, or if
    memory holds too much: then it binds only in long windows.
    """
    most = WIDE_HELD * best.problem.ranks
    little = [host.limit <= most * float(host.m_b.sum()) for host in placed.hosts]
    if 3 * best.problem.stages * best.problem.microbatches > WIDE_OPS or not any(little):
        return None
    literals = [orders.literals() for orders in rank_orders(best.problem)]
    first, *others = sorted(placed.hosts, key=lambda host: host.lowest)
    for chosen in ([first, *others], [first, *others[-1:]]):
        if sum(literals[host.rank] for host in chosen) <= WIDE_LITERALS:
            own = {host.rank for host in chosen}
            known = [each for each in taught if each.host.rank in own]
            return RankWindows(best, placed, first, chosen[1:], known)
    return None


def _follow(best: Incumbent, wide: RankWindows) -> Pieces:
    """Ask about ever longer windows of several ranks.

    It stops if they are not expected to reach all microbatches in time.
    """
    lengths = list(_lengths(wide.all))
    for i, m in enumerate(lengths):
        before = wide.spent
        yield from wide.follow(m)
        took = (wide.spent - before) / OPS_A_SECOND
        expected = took * sum(SLOWER**n for n in range(1, len(lengths) - i))
        left = best.budget(WIDE_SHARE)
        if expected > min(left.time.left, left.work.ops / OPS_A_SECOND) or not wide.answered:
            break


def _lengths(longest: int) -> Iterator[int]:
    """The lengths of windows to ask about: all at first, then ever fewer, and the longest."""
    m = 1
    while m < longest:
        yield m
        m += 1 + m // SPARSE
    if longest:
        yield longest
