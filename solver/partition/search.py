"""Cut, placement and schedule together: many cuts at a glance, the best few searched, one to the end.

1. Every placement has a bound on all its cuts (:mod:`.every`), and first cuts: the one of the least
   bound, the balanced and the even one.
2. From there cuts are looked at by turns in two orders: the next by its bound, and the neighbours of the best so far. A
   look takes the bounds of that cut and, where they allow it to win, a schedule built without search.
3. The best few are searched in a small share of the time each, the best of those in a larger one,
   and the best one in what is left. Whatever its bound proves no better than the best is left out.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeAlias

from pipeloom.ir.errors import InfeasibleError
from pipeloom.ir.layered import LayeredProfile
from pipeloom.ir.problem import Objective, Placement, Problem
from pipeloom.ir.schedule import Schedule, Status

from ..allowance import Allowance
from ..placements import cost_of, room
from .cuts import Cut, Cutter, Rules
from .every import EveryCut
from .sketch import bound_of, effort, sketched

Search: TypeAlias = Callable[[Problem, str, float], Schedule]
"""The optimizer, given a problem, its name, and its share of the time."""

CLOSED = 1e-6
HURRY = 1e-3
"""The share of a search that was told to stop before it began."""
LOOKING = 0.2
"""The share of the time in which cuts are looked at."""
ROUNDS = ((6, 0.25), (2, 0.2))
"""How many of the best cuts are searched in each round, and the share of the time of all of them."""


MOST_LEFT = 400
"""Cuts that are bounded one by one in the end."""
LOOKED_AT = 100
"""What the bounds of a cut count, in simulated ops, times stages squared times microbatches."""


class Way(Enum):
    """How the cut is chosen: with the schedule, or before it."""

    JOINT = "joint"
    BALANCED = "balanced"
    EVEN = "even"


@dataclass(slots=True, eq=False)
class Option:
    """A cut with a placement: ``bound`` on all its schedules, ``sketch``: the cost of one built at once.

    ``schedule``: the best one found, None where it was not searched.
    """

    problem: Problem
    cut: Cut
    bound: float
    sketch: float = math.inf
    schedule: Schedule | None = None

    @property
    def cost(self) -> float:
        return math.inf if self.schedule is None else cost_of(self.schedule)

    def take(self, schedule: Schedule) -> None:
        """Keeps the schedule if it is better, and the bound that came with it."""
        best = (
            schedule if self.schedule is None or cost_of(schedule) <= self.cost else self.schedule
        )
        proven = max((schedule, self.schedule or schedule), key=_proven)
        self.bound = max(self.bound, _proven(proven))
        self.schedule = _with_bound(best, proven)


@dataclass(frozen=True, slots=True)
class Partitioned:
    """``best``: None where nothing fits, as ``why_not`` says of each placement that has no cut.

    No schedule of any cut with any of the placements costs less than ``bound``. ``searched``: the best
    first; ``seen``: how many cuts were looked at. ``no_cut``: the layers cannot be cut for any of the placements.
    """

    best: Option | None
    searched: tuple[Option, ...]
    bound: float
    seen: int
    why_not: dict[str, str]
    no_cut: bool = False


def best_partition(
    profile: LayeredProfile,
    microbatches: int,
    placements: Sequence[Placement],
    search: Search,
    *,
    way: Way = Way.JOINT,
    rules: Rules | None = None,
    memory_limit: float | None = None,
    objective: Objective = Objective.PERIOD,
    looking: Allowance | None = None,
    seed: int = 0,
    should_stop: Callable[[], bool] = lambda: False,
) -> Partitioned:
    """The best cut, placement and schedule; ``looking`` limits how long cuts are looked at.

    ``search(problem, name, share)`` is the optimizer, given a share of the time. Activations keep the
    memory limit, and what a rank's weights, gradients and optimizer state leave of ``device_memory``.
    """
    limit = profile.cluster.limit_from(memory_limit)
    desks, why_not, cannot = [], {}, True
    for placement in placements:
        cutter = Cutter(profile, len(placement.owners), rules or Rules())
        every = EveryCut(cutter, placement, microbatches, limit, objective)
        desk = Desk(every, seed)
        if (reason := _no_cut(cutter)) is None:
            cannot, reason = False, desk.open(way)
        if reason is None:
            desks.append(desk)
        else:
            why_not[placement.name] = reason
    looking = looking or Allowance()
    if way is Way.JOINT:
        look(desks, looking, should_stop)
    options = [option for desk in desks for option in desk.options.values()]
    searched = Finals(search, should_stop, way).of(options) if options else []
    for desk in desks:
        if not desk.options:
            why_not[desk.every.placement.name] = "no cut was found that fits in memory"
    best = min(searched, key=lambda option: option.cost, default=None)
    cost = math.inf if best is None else best.cost
    bounds = [desk.certified(cost, looking.again()) for desk in desks]
    seen = sum(len(desk.options) + desk.refused for desk in desks)
    bound = min(bounds, default=math.inf)
    return Partitioned(best, tuple(searched), bound, seen, why_not, no_cut=not desks and cannot)


@dataclass(eq=False)
class Desk:
    """The cuts of one placement that have been looked at, and those to look at next."""

    every: EveryCut
    seed: int
    options: dict[Cut, Option] = field(default_factory=dict)
    refused: int = 0
    bound: float = 0.0
    _queue: list[tuple[tuple[float, ...], Cut]] = field(default_factory=list)
    _queued: set[Cut] = field(default_factory=set)
    _near: Iterator[Cut] = field(default_factory=lambda: iter(()))
    _near_to: Option | None = None

    def open(self, way: Way) -> str | None:
        """Takes the first cuts; the reason where there is none, or none that fits."""
        cutter = self.every.cutter
        even, balanced = cutter.even(), cutter.balanced(self.every.fitting())
        self.bound = self.every.bound()
        first = [balanced] if way is Way.BALANCED else [even]
        if way is Way.JOINT:
            first = [self.every.first(), balanced, even]
        for cut in first:
            if cut is not None:
                self.look(cut, math.inf)
        if self.options or (way is Way.JOINT and math.isfinite(self.bound)):
            return None
        return "no cut fits in memory" if math.isinf(self.bound) else self._lacking(first[0])

    def _lacking(self, cut: Cut | None) -> str:
        try:
            if cut is not None:
                bound_of(self._problem(cut))
        except InfeasibleError as error:
            return str(error)
        return "no cut fits in memory"

    @property
    def best(self) -> Option | None:
        return min(self.options.values(), key=lambda option: option.sketch, default=None)

    def look(self, cut: Cut, cost: float) -> float:
        """Bounds a cut and, where it may cost less than ``cost``, sketches a schedule; the work done."""
        self._queued.add(cut)
        problem = self._problem(cut)
        for near in self.every.cutter.neighbours(cut):
            if near not in self._queued:
                self._queued.add(near)
                heapq.heappush(self._queue, (self.every.of(near), near))
        work = float(problem.stages**2 * problem.microbatches * LOOKED_AT)
        try:
            option = Option(problem, cut, bound_of(problem))
        except InfeasibleError:
            self.refused += 1
            return work
        self.options[cut] = option
        if option.bound < cost * (1 - CLOSED):
            option.sketch = sketched(problem, option.bound, self.seed)
            work += effort(problem)
        return work

    def certified(self, cost: float, looking: Allowance) -> float:
        """No schedule of any cut costs less than this, which is at most ``cost``.

        The cuts whose ranks each alone allow less than ``cost`` are listed: of them the least bound counts.
        Where they are too many it is :attr:`bound`.
        """
        left = None if self.bound >= cost else self.every.below(cost * (1 - CLOSED), MOST_LEFT)
        least = cost
        for cut in left or ():
            if looking.spent:
                return min(self.bound, cost)
            problem = self._problem(cut)
            looking.spend(problem.stages**2 * problem.microbatches * LOOKED_AT)
            with suppress(InfeasibleError):
                known = self.options.get(cut)
                least = min(least, bound_of(problem) if known is None else known.bound)
        return min(self.bound, cost) if left is None else max(self.bound, least)

    def by_bound(self) -> Cut | None:
        """The next cut in the order of bounds that look at one rank alone."""
        while self._queue:
            _, cut = heapq.heappop(self._queue)
            if cut not in self.options:
                return cut
        return None

    def near_the_best(self) -> Cut | None:
        """A neighbour of the best cut that has not been looked at."""
        best = self.best
        if best is None:
            return None
        if best is not self._near_to:
            near = sorted(self.every.cutter.neighbours(best.cut), key=self.every.of)
            self._near, self._near_to = iter(near), best
        return next((cut for cut in self._near if cut not in self.options), None)

    def _problem(self, cut: Cut) -> Problem:
        every = self.every
        profile, placement = every.cutter.profile.cut(cut), every.placement
        limit = room(profile, placement, every.limit)
        return Problem(profile, every.microbatches, placement, limit, every.objective)


def look(desks: Sequence[Desk], looking: Allowance, should_stop: Callable[[], bool]) -> None:
    """Looks at cuts of all placements by turns, until all are seen or time is up."""
    open_ = list(desks)
    while open_ and not looking.spent and not should_stop():
        for desk in list(open_):
            cost = min(
                (o.sketch for each in desks for o in each.options.values()), default=math.inf
            )
            cuts = [desk.by_bound(), desk.near_the_best()]
            if desk.bound >= cost * (1 - CLOSED) or cuts == [None, None]:
                open_.remove(desk)
                continue
            for cut in cuts:
                if cut is not None and not looking.spent:
                    looking.spend(desk.look(cut, cost))


@dataclass(frozen=True, slots=True)
class Finals:
    """Searches the best of the cuts that were looked at."""

    search: Search
    should_stop: Callable[[], bool]
    way: Way

    def of(self, options: Sequence[Option]) -> list[Option]:
        """Those that were searched, the best first."""
        rounds = ROUNDS if self.way is Way.JOINT and len(options) > 1 else ()
        left = 1.0 - LOOKING if self.way is Way.JOINT else 1.0
        found = sorted(options, key=_promise)
        for number, share in rounds:
            left -= self._round(found[:number], share / number)
            found.sort(key=_promise)
        last = found[:1] if self.way is Way.JOINT else found
        self._round(last, left / len(last))
        return sorted((o for o in found if o.schedule), key=_promise)

    def _round(self, options: Sequence[Option], share: float) -> float:
        """Searches each for a share of the time unless it cannot win; returns what they had in all."""
        had = 0.0
        for option in options:
            best = min(each.cost for each in options)
            if option.cost <= option.bound * (1 + CLOSED) or (
                option.cost > best and option.bound >= best * (1 - CLOSED)
            ):
                continue
            stopped = self.should_stop()
            if stopped and math.isfinite(best):
                break
            # before anything was found: the first schedules come at once
            part = min(share, HURRY) if stopped else share
            option.take(self.search(option.problem, _name(option), part))
            had += part
        return had


def _proven(schedule: Schedule) -> float:
    return (schedule.report.lower_bound if schedule.report else None) or 0.0


def _with_bound(schedule: Schedule, proven: Schedule) -> Schedule:
    """``schedule`` under the bound that came with another one of the same problem."""
    if schedule is proven or schedule.report is None or proven.report is None:
        return schedule
    bound = min(_proven(proven), cost_of(schedule))
    closed = cost_of(schedule) - bound <= CLOSED * cost_of(schedule)
    status = Status.OPTIMAL if closed else Status.FEASIBLE
    known = replace(
        schedule.report, lower_bound=bound, bound_name=proven.report.bound_name, status=status
    )
    return replace(schedule, report=known)


def _promise(option: Option) -> tuple[float, float, float]:
    return min(option.cost, option.sketch), option.bound, option.sketch


def _name(option: Option) -> str:
    """The placement and how many layers each stage has."""
    number = sum(len(stage.layers) for stage in option.problem.profile.stages)
    ends = (*option.cut[1:], number)
    sizes = "+".join(str(b - a) for a, b in zip(option.cut, ends, strict=True))
    return f"{option.problem.placement.name} {sizes}"


def _no_cut(cutter: Cutter) -> str | None:
    """Why there is no cut; None where there is one."""
    if cutter.even() is not None:
        return None
    pieces = cutter.number - sum(cutter.profile.tied)
    if pieces < cutter.stages:
        return f"{pieces} layers that may be cut apart are fewer than its {cutter.stages} stages"
    most = "" if cutter.rules.most is None else f" and at most {cutter.rules.most}"
    return (
        f"no cut of {cutter.number} layers into {cutter.stages} stages has at least "
        f"{cutter.rules.least}{most} in each"
    )
