"""A bound from all orders of few ranks: of few microbatches first, of more with what these prove.

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

**Several ranks.** So it is with the ops of other ranks in the model, whose lowest stage is no lower
than l: their first op is an F of that, and their last B leaves time for the way back to l. What is
proven of one rank's windows is a constraint there, too.

**Cost.** E(M - 1) is what the rank takes from its first op to its last B; then see
:meth:`...bounds.several_stages.general_placement.GeneralPlacement.way_back`.
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
MOST_HELD = 3.5  # microbatches that fit into a rank's memory with all their chunks, at most
TURNS = 3.0  # times as many microbatches as that are in the longest window that is not all
OPS = 600  # F's and B's of a model at most: it is built in the square of their number
QUESTIONS, ALL_QUESTIONS = 6, 8  # about one window, about all microbatches
CLOSE = 0.006  # relative distance of what is refuted and what is not, from which on none is asked
SECONDS, ALL_SECONDS = 0.2, 2.0  # of a core for a question about one window, about all microbatches
SHARE = 0.5  # of the time left for windows of one rank that are not all, at most
WIDE_LITERALS, WIDE_OPS = 4_000, 3_000  # of all microbatches, of several ranks and of the problem
WIDE_HELD = 0.61  # of P microbatches fit into some rank's memory with all their chunks, at most
WIDE_SHARE = 0.5  # of the time left for windows of several ranks
FOLLOW_QUESTIONS, FOLLOW_SECONDS = 6, 2.0  # about one window of several ranks
SPARSE = 8  # windows up to which all lengths are asked about
SLOWER = 1.3  # times as long as the last questions of several ranks the next take, roughly
STRIDE, PARTS = 3, 12  # windows back that say what to expect of the next; part of it that is enough
UNANSWERED = 2  # questions about one window, after which there are no more


class RankWindow:
    """The model of ranks with ``orders``, for at most ``most`` ticks until the last B ends."""

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
    """``least``: E(m) in ticks, at least, for the m that have been asked about; ``spent``: the ops
    that questions took."""

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
        """From op to op of a microbatch on the rank, and the least time between their starts."""
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
        """The least time of a microbatch from the end of B(stage) to that of B(l)."""
        back, low = self._placed.back, self.host.lowest
        way = self.ticks.down(float(back[low] - back[stage]))
        return way + self.times[BACKWARD][low] - self.times[BACKWARD][stage]

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
        whose = "its" if len(self.hosts) == 1 else "these ranks'"
        why = f"of {counted(m + 1, 'microbatch')} no order of {whose} ops takes less"
        words = WORDS if len(self.hosts) == 1 else WORDS_OF_MORE
        return self._placed.way_back("rank-orders", words, self.host, until, why)

    def ask(self, m: int, most: int, seconds: float) -> int | None:
        """Whether a window of ``m`` can take ``most`` ticks: what one takes; a tick more where none
        can; None where there is no answer within so many seconds of a core."""
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
        """Asks about windows of ``m``, as far above what is known as the rank runs one more."""
        yield from self._climb(m, self.known(m), self._one_more(), QUESTIONS, SECONDS)

    def follow(self, m: int) -> Pieces:
        """Asks about windows of ``m`` near what the last ones let expect; nothing more is expected
        of longer ones where there was no answer."""
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
        """Whether ``found`` says that no window of ``m`` takes ``target``; the bound is taken."""
        if found is None or found <= target:
            return False
        self.least[m] = target + 1
        self._best.raise_bound(self.bound)
        return True

    def _one_more(self) -> int:
        return sum(self.times[kind][s] for kind in (FORWARD, BACKWARD) for s in self.host.stages)

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
            if self._is_refuted(m, target, found):
                low, step = target, 2 * step
            else:
                high, met = target if found is None else found, True
                unanswered += found is None
            yield


def bound_by_windows(best: Incumbent) -> Generator[None, None, Sequence[Apart]]:
    """Takes what windows prove: of each rank at first, half of them go on each time that windows
    are twice as long; then of several ranks at once. All microbatches are asked about of the rank
    that promises most: at once where that is the one whose lowest stage is highest, at which a
    placement folds, else if several ranks do not come as far.

    Asks ranks alone that hold few microbatches. Microbatches are alike, stages on their ranks,
    neither recomputed nor offloaded."""
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
    """Asks about windows of one rank; returns that which promises most."""
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
    """Windows of all ranks, or of the one with the first stage and the one whose lowest stage is
    highest; None where these orders are too many, or more than .6 P microbatches fit into each
    rank's memory, as windows are long then before it binds."""
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
    """Asks about windows of several ranks for as long as all of them, each taking longer than the
    last, seem to be done in time."""
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
    """All lengths at first, then ever fewer, and the longest."""
    m = 1
    while m < longest:
        yield m
        m += 1 + m // SPARSE
    if longest:
        yield longest
