"""Which placement is best: those that fit a profile are bounded, and race while they can still win."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import monotonic
from typing import Protocol, TypeAlias

from pipeloom.ir.errors import InfeasibleError
from pipeloom.ir.problem import Objective, Placement, Problem
from pipeloom.ir.profile import Profile, StageProfile
from pipeloom.ir.schedule import Schedule

from .bounds import lower_bound


class Search(Protocol):
    """The optimizer at one problem, left and taken up again: see :class:`.solve.Solving`."""

    @property
    def done(self) -> bool: ...

    def begin(self, seconds: float) -> Schedule: ...

    def run(self, seconds: float) -> Schedule: ...


Searcher: TypeAlias = Callable[[Problem, str], Search]
"""The optimizer, given a problem and the name of its placement."""

HOPE = 4.0
"""How much of its last step a search may still gain, in units of that step."""
LEAST_SECONDS = 0.5
EXPLORING = 0.4
"""Of the time, what is for finding out which placement is worth the rest."""
CUTS = (1, 2, 3, 4)
"""Stages a rank into which a profile of one stage a rank is cut."""
CLOSED = 1e-6


@dataclass(frozen=True, slots=True)
class Tried:
    """A placement: the bound on all of its schedules, and the best schedule found.

    ``bound`` is None where none fits, as ``why_not`` says; ``schedule`` is None where it was not searched, since no schedule
    of it beats one that was there, or for lack of time.
    """

    name: str
    bound: float | None
    schedule: Schedule | None = None
    why_not: str | None = None

    @property
    def cost(self) -> float:
        return math.inf if self.schedule is None else cost_of(self.schedule)


@dataclass(frozen=True, slots=True)
class Chosen:
    """``best``: the cheapest schedule of all placements, None where none fits; ``tried``: one each.

    No schedule of any of these placements costs less than ``bound``.
    """

    best: Schedule | None
    tried: tuple[Tried, ...]

    @property
    def bound(self) -> float | None:
        bounds = [each.bound for each in self.tried if each.bound is not None]
        return min(bounds, default=None)


def best_placement(
    profile: Profile,
    microbatches: int,
    searcher: Searcher,
    *,
    seconds: float = math.inf,
    memory_limit: float | None = None,
    objective: Objective = Objective.PERIOD,
    should_stop: Callable[[], bool] = lambda: False,
) -> Chosen:
    """The best schedule of all placements of ``profile``.

    Activations keep the memory limit, and what the weights, gradients and optimizer state of a
    rank's stages leave of ``device_memory``. A placement whose bound is no lower than the best cost found is left out.

    Without a limit of ``seconds`` each search runs to its own end, so that none by itself finds less.
    Within one, all placements get their first schedules; the more promising half goes on, again and
    again, until one is left; the rest of the time is for what promises most by then.
    """
    race = _Race(seconds, should_stop)
    for placed, placement in placements(profile):
        limit = room(placed, placement, placed.limit_from(memory_limit))
        problem = Problem(placed, microbatches, placement, limit, objective)
        try:
            race.enter(_Runner(placement.name, lower_bound(problem).value, problem))
        except InfeasibleError as error:
            race.out.append(Tried(placement.name, None, why_not=str(error)))
    race.run(searcher)
    return Chosen(race.best, race.tried())


@dataclass(slots=True, eq=False)
class _Runner:
    """A placement in the race: the bound known so far, its search and the best schedule."""

    name: str
    bound: float
    problem: Problem
    search: Search | None = None
    schedule: Schedule | None = None
    promise: float = math.inf

    @property
    def cost(self) -> float:
        return math.inf if self.schedule is None else cost_of(self.schedule)

    def take(self, schedule: Schedule) -> None:
        """Notes as well what may become of it: the cost if it falls :data:`HOPE` times as much again."""
        before, self.schedule = self.cost, schedule
        known = schedule.report.lower_bound if schedule.report else None
        self.bound = max(self.bound, known or 0.0)
        fell = before - self.cost if before < math.inf else 0.0
        self.promise = max(self.bound, self.cost - HOPE * fell)

    def tried(self) -> Tried:
        return Tried(self.name, self.bound, self.schedule)


class _Race:
    """Placements that share ``seconds``; the first of them is searched whatever happens."""

    def __init__(self, seconds: float, should_stop: Callable[[], bool]) -> None:
        self._ends, self._should_stop = monotonic() + seconds, should_stop
        self._runners: list[_Runner] = []
        self.out: list[Tried] = []

    def enter(self, runner: _Runner) -> None:
        self._runners.append(runner)

    @property
    def best(self) -> Schedule | None:
        return min(self._runners, key=lambda r: r.cost).schedule if self._runners else None

    @property
    def cost(self) -> float:
        return min((runner.cost for runner in self._runners), default=math.inf)

    @property
    def left(self) -> float:
        return max(0.0, self._ends - monotonic())

    @property
    def over(self) -> bool:
        return self.cost < math.inf and (self._should_stop() or self.left <= 0.0)

    def tried(self) -> tuple[Tried, ...]:
        every = [*(runner.tried() for runner in self._runners), *self.out]
        return tuple(sorted(every, key=lambda each: (each.cost, each.bound or math.inf)))

    def run(self, searcher: Searcher) -> None:
        """Those with the least bound begin; then rounds of fewer and fewer; then the most promising."""
        for runner in sorted(self._runners, key=lambda r: r.bound):
            if not self.over and self._may_win(runner):
                runner.search = searcher(runner.problem, runner.name)
                runner.take(runner.search.begin(self.left))
        if self.left < math.inf:
            self._halve()
            self._finish()
        for runner in self._going_on():
            if self._may_win(runner):
                self._advance(runner, self.left)

    def _halve(self) -> None:
        racing = self._going_on()
        rounds = max(1, math.ceil(math.log2(max(1, len(racing)))))
        each = EXPLORING * self.left / rounds
        while len(racing) > 1:
            for runner in racing:
                self._advance(runner, min(self.left, each / len(racing)))
            still = self._going_on()
            racing = [runner for runner in still if runner in racing][: (len(racing) + 1) // 2]

    def _finish(self) -> None:
        """A third of what is left for the most promising, again and again: mostly the same one."""
        while not self.over and (going_on := self._going_on()):
            self._advance(going_on[0], min(self.left, max(self.left / 3, LEAST_SECONDS)))

    def _advance(self, runner: _Runner, seconds: float) -> None:
        if not self.over:
            assert runner.search is not None
            runner.take(runner.search.run(seconds))

    def _going_on(self) -> list[_Runner]:
        """Those that have begun and may still win, the most promising first."""
        begun = [r for r in self._runners if r.search is not None and self._may_win(r)]
        return sorted(begun, key=lambda runner: runner.promise)

    def _may_win(self, runner: _Runner) -> bool:
        done = runner.search is not None and runner.search.done
        return not done and runner.bound < self.cost * (1 - CLOSED)


def placements(profile: Profile) -> Iterator[tuple[Profile, Placement]]:
    """The profile, cut where it has one stage a rank, with each placement of its stages; equal ones once."""
    ranks, seen = profile.ranks, set()
    chunks, rest = divmod(profile.num_stages, ranks)
    for cut in CUTS if (chunks, rest) == (1, 0) else (1,) if rest == 0 else ():
        placed, each = profile.split(cut) if cut > 1 else profile, cut * chunks
        found = [Placement.linear(ranks) if each == 1 else Placement.interleaved(ranks, each)]
        if each == 2:
            found.append(Placement.v(ranks))
        elif each % 2 == 0:
            found.append(Placement.wave(ranks, each // 2))
        for placement in found:
            if placement.owners not in seen:
                seen.add(placement.owners)
                yield placed, placement


def room(profile: Profile, placement: Placement, limit: tuple[float, ...]) -> tuple[float, ...]:
    """What each rank has for activations: its ``limit``, or less where weights leave less."""
    if profile.device_memory is None:
        return limit
    return tuple(
        max(0.0, min(given, device - sum(kept(profile.stages[s]) for s in placement.stages_of(rank))))
        for rank, (given, device) in enumerate(zip(limit, profile.device_memory, strict=True))
    )  # fmt: skip


def kept(stage: StageProfile) -> float:
    """Weights, gradients and optimizer state of a stage; unknown ones count as 0."""
    return sum(
        size or 0.0 for size in (stage.weight_bytes, stage.grad_bytes, stage.optimizer_bytes)
    )


def cost_of(schedule: Schedule) -> float:
    """Of a timed schedule, by its problem's objective."""
    assert schedule.timing is not None
    return schedule.timing.cost(schedule.problem.objective)
