"""A lower bound from all orders of the ops of one rank, or of a few, by CP-SAT.

The other ranks are replaced by the minimum times that a microbatch needs there (:mod:`.instance`).
Let l be the lowest stage of the rank, and E(m) the minimum time from the start of F(l) of some
microbatch to the end of B(l) of the m-th microbatch after it.

**Windows.** A *window* of length m is m + 1 successive microbatches, which are numbered by position
(:mod:`.instance`). In any schedule, the ops of microbatches j, ..., j+m, without the others,
satisfy all dependencies, the order of each class, no-overlap and memory; W's that are not needed in
time may come later. So a bound E(m) > t, proven for m + 1 microbatches without others, holds for
every window of length m in a larger schedule, where it becomes a constraint on F(l, j) and B(l,
j+m). Without it the solver would have to find the same refutation for each j.

**Several ranks.** The model may also have the ops of other ranks whose lowest stage is above l:
their first op is an F of that stage, and after their last B there is the time of the way back to l.
What is proven for windows of one rank becomes a constraint there, too.

**Cost.** E(M - 1) bounds the time from the rank's first op to the end of its last B. The bound on
the cost follows by :meth:`..bounds.several_stages.general_placement.GeneralPlacement.way_back`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from math import inf

from ortools.sat.python import cp_model

from pipeloom.ir.units import counted

from ..bounds.several_stages.general_placement import GeneralPlacement, HostModel
from ..core.bound import Bound
from ..core.incumbent import Incumbent
from ..core.relaxations import unfused
from ..core.stopping import OPS_A_SECOND
from ..core.streams import number_of_ops
from ..core.worker_threads import Pieces
from .bisection import run
from .instance import B, F, Instance, Learned, OpClass, all_orders
from .model import PARAMETERS, OrderModel

WORDS = "all orders of one rank's ops are searched, the other ranks count as ways"
WORDS_OF_MORE = "all orders of several ranks' ops are searched, any other ranks count as ways"
MOST_HELD = 3.5  # only for ranks whose memory holds at most this many whole microbatches
TURNS = 3.0  # longest window of one rank before all, in microbatches that memory holds
OPS = 600  # maximum number of F's and B's in a model, which takes quadratic time to build
CLOSE = 0.006  # relative distance of bound and lowest target not refuted at which a climb ends
# (number of targets, core seconds of each): for one window; for the one of all microbatches
LIMITS, ALL_LIMITS = (6, 0.2), (8, 2.0)
SHARE = 0.5  # share of the time left for windows of one rank, without all microbatches
# for several ranks: maximum number of literals, and of ops of the problem
WIDE_LITERALS, WIDE_OPS = 4_000, 3_000
WIDE_HELD = 0.61  # several ranks only if one holds at most this times P microbatches
WIDE_SHARE = 0.5  # share of the time left for windows of several ranks
FOLLOW_LIMITS = 6, 2.0  # like LIMITS, for one window of several ranks
SPARSE = 8  # up to this length all windows are tried
SLOWER = 1.3  # estimated factor from the time of one length to that of the next
STRIDE, PARTS = 3, 12  # E is extrapolated from this many lengths; precision: step / PARTS
UNANSWERED = 2  # undecided targets after which a window is given up


class RankWindows:
    """Lower bounds on the time of windows of the rank ``host``, from all orders of its ops.

    A window of length m is m + 1 successive microbatches. E(m) is the minimum time from the start
    of the first microbatch's F to the end of the last one's B, both on the rank's lowest stage.
    ``beside``: further ranks whose ops the models contain. ``taught``: windows of single ranks,
    whose bounds become constraints.

    ``least``: the proven lower bounds on E(m), by m; the bound for m = 0 is known from the start.
    ``all``: the largest m, M - 1. ``spent``: CP-SAT's work so far, in simulated ops. ``answered``:
    whether fewer than :data:`UNANSWERED` targets stayed undecided for the length that was tried
    last, so that longer windows are worth a try.
    """

    def __init__(
        self,
        best: Incumbent,
        placed: GeneralPlacement,
        host: HostModel,
        beside: Sequence[HostModel] = (),
        taught: Sequence[RankWindows] = (),
    ) -> None:
        self.host, self._best, self._placed, self._taught = host, best, placed, taught
        self._ranks = [each.rank for each in (host, *beside)]
        self._enters, self._leaves = OpClass(F, host.lowest), OpClass(B, host.lowest)
        self._last = float(placed.b[host.lowest])
        self.least = {0: placed.turn(host.lowest, host.lowest) + self._last}
        self.all, self.answered, self.spent = host.count - 1, True, 0.0

    def known(self, m: int) -> float:
        """The lower bound on E(m): the highest proven bound for ``m`` or a shorter length."""
        return max(least for k, least in self.least.items() if k <= m)

    def learned(self) -> Iterator[Learned]:
        """Yield the proven bounds on E(m) as precedences, which hold in every schedule."""
        for m, least in self.least.items():
            yield self._enters, self._leaves, m, least - self._last

    @property
    def bound(self) -> Bound:
        """The lower bound on the cost that follows from the bound on E(m) for the largest m."""
        m, alone = max(self.least), len(self._ranks) == 1
        why = f"of {counted(m + 1, 'microbatch')} no order of {'its' if alone else 'these ranks'}"
        words = WORDS if alone else WORDS_OF_MORE
        return self._placed.way_back("rank-orders", words, self.host, self.least[m], why)

    def _window(self, m: int, most: float) -> Instance:
        """The instance of all orders of a window of length m that take at most ``most``.

        That is, the time of the window, as in E(m), is at most ``most``.
        """
        learned = [way for each in (self, *self._taught) for way in each.learned() if way[2] <= m]
        problem = replace(self._best.problem, microbatches=m + 1)
        whole = all_orders(problem, ranks=self._ranks, learned=learned)
        due = whole.due.copy()
        due[whole.at(B, self.host.lowest, m)] = most
        return replace(whole, due=due, objective=None, until=B)

    def _ask(self, m: int, most: float, seconds: float) -> float | None:
        """Let CP-SAT decide whether a window of length m can take at most ``most``.

        ``seconds``: the time limit, in seconds of one core. Returns the time of the window in the
        last solution that was found; inf if CP-SAT proved that there is no solution (the bounds are
        then raised); or None if it did neither.
        """
        window, best = self._window(m, most), self._best
        model, budget = OrderModel(window, 0.0, most), best.budget()
        budget.work.ops = min(budget.work.ops, seconds * OPS_A_SECOND)
        end, found = window.at(B, self.host.lowest, m), list[int]()

        def time(solution: cp_model.CpSolverSolutionCallback) -> int:
            return int(solution.value(model.starts[end])) + model.takes[end]

        search = run(best, model, budget, PARAMETERS, read=time, take=found.append)
        self.spent += search.work
        if search.refuted:
            self.least[m] = model.above
            best.raise_bound(self.bound)
            return inf
        return found[-1] / model.ticks.per_unit if found else None

    def grow(self, m: int) -> Pieces:
        """Raise the bound on E(m) from the bound known for shorter windows.

        The first target is above the known bound by the time of one microbatch's F's and B's on the
        rank.
        """
        step = float((self.host.f + self.host.b).sum())
        yield from self._climb(m, self.known(m), (step, 2 * step), LIMITS)

    def finish(self) -> Pieces:
        """Raise the bound on E(M - 1), the minimum time of the window of all microbatches.

        The first target is halfway between the known bound and the time that the best cost allows.
        """
        low = max(self.known(self.all), self._time_of(self._best.bound.value))
        step = (self._time_of(self._best.cost) - low) / 2
        yield from self._climb(self.all, low, (step, 2 * step), ALL_LIMITS)

    def follow(self, m: int) -> Pieces:
        """Raise the bound on E(m) from the bound known for shorter windows.

        The first target is extrapolated linearly from the bounds for shorter windows.
        """
        last = max(self.least)
        since = max((k for k in self.least if k <= last - STRIDE), default=0)
        grown = (self.least[last] - self.least[since]) / max(1, last - since)
        step = (grown or float((self.host.f + self.host.b).sum())) * (m - last)
        steps, close = (step, step / 4), step / PARTS
        yield from self._climb(m, self.known(m), steps, FOLLOW_LIMITS, close)

    def _time_of(self, cost: float) -> float:
        """The maximum time from the rank's first op to the end of its last B at this ``cost``."""
        return max(0.0, cost - self._placed.way_back("", "", self.host, 0.0, "").value)

    def _climb(
        self,
        m: int,
        low: float,
        steps: tuple[float, float],
        limits: tuple[int, float],
        close: float | None = None,
    ) -> Pieces:
        """Raise the bound on E(m) by refuting rising targets.

        To refute a target is to prove that no window takes at most that. ``low``: the known bound.
        The first target is ``low`` + ``steps[0]``; after it is refuted, the next one is higher by
        ``steps[1]``, and this step doubles with each further refutation. Once a target is not
        refuted, each next target is halfway between the bound and ``high``: the lowest target that
        stayed undecided, or time of a solution. ``limits``: the maximum number of targets, and the
        time limit of each in seconds of one core. It ends when ``high`` is at most ``close`` above
        the bound (by default CLOSE times the time that the best cost allows), or after
        :data:`UNANSWERED` undecided targets.
        """
        if 2 * len(self.host.stages) * (m + 1) > OPS:
            return
        high, met, unanswered = self._time_of(self._best.cost), False, 0
        (step, later), (questions, seconds) = steps, limits
        for _ in range(questions):
            enough = CLOSE * high if close is None else close
            if high - low <= enough or unanswered >= UNANSWERED or self._best.over():
                break
            target = (low + high) / 2 if met else min(low + step, high)
            found = self._ask(m, target, seconds)
            if found == inf:
                low, step, later = target, later, 2 * later
            else:
                high, met = target if found is None else found, True
                unanswered += found is None
            yield
        self.answered = unanswered < UNANSWERED


def bound_by_windows(best: Incumbent) -> Generator[None, None, Sequence[Learned]]:
    """Raise the lower bound by windows; return the precedences that they prove, possibly none.

    A window is a number of successive microbatches on one or more ranks (:class:`RankWindows`).
    First, windows of single ranks are tried, with increasing lengths; each time the length doubles,
    the half of the ranks with the lower bounds is dropped. Next, windows of several ranks are
    tried. The window of all microbatches is also tried on the single rank with the highest bound:
    before the windows of several ranks if no rank has a higher lowest stage (where a placement
    folds); otherwise after them, and only if they did not reach this length.

    Only ranks that hold few microbatches are considered. Microbatches must be equal, and each stage
    must be on one rank, and neither recomputed nor offloaded.
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
    return [way for rank in (*asked, *((wide,) if wide else ())) for way in rank.learned()]


def _grow(
    best: Incumbent, asked: Sequence[RankWindows]
) -> Generator[None, None, RankWindows | None]:
    """Raise the bounds on E(m) of each of ``asked``, with increasing lengths m.

    Each time m doubles, the half of ``asked`` with the lower bounds is dropped. Returns the one
    with the highest bound on the cost, or None if ``asked`` is empty.
    """
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
    """The :class:`RankWindows` of all ranks together or, if these have too many orders, of two.

    The two are the rank with the lowest stage of all, and the rank whose lowest stage is highest.
    Returns None if these have too many orders as well, if the problem has too many ops, or if every
    rank holds so many microbatches that memory limits only long windows. ``taught``: windows of
    single ranks; those of the ranks in the result are passed to it.
    """
    most = WIDE_HELD * best.problem.ranks
    little = [host.limit <= most * float(host.m_b.sum()) for host in placed.hosts]
    if number_of_ops(best.problem) > WIDE_OPS or not any(little):
        return None
    first, *others = sorted(placed.hosts, key=lambda host: host.lowest)
    for beside in (others, others[-1:]):
        ranks = [host.rank for host in (first, *beside)]
        if all_orders(best.problem, ranks=ranks).literals <= WIDE_LITERALS:
            known = [each for each in taught if each.host.rank in ranks]
            return RankWindows(best, placed, first, beside, known)
    return None


def _follow(best: Incumbent, wide: RankWindows) -> Pieces:
    """Raise the bounds on E(m) of ``wide``, windows of several ranks, with increasing lengths m.

    It stops early if the time left is not expected to suffice for the window of all microbatches,
    or if too many targets stayed undecided.
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
    """Yield the window lengths to try, in ascending order, up to ``longest``.

    They are 1, 2, 3, ... at first, then farther and farther apart. There are none if ``longest`` is
    0.
    """
    m = 1
    while m < longest:
        yield m
        m += 1 + m // SPARSE
    if longest:
        yield longest
