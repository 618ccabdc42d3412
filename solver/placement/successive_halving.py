"""Successive halving of placements, one solve each: they share the time while they may win."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from time import monotonic
from typing import Protocol, TypeAlias

from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule

from ..core.schedule_cost import iteration_time
from ..core.stopping import StoppingCriterion, TimeLimit
from ..core.tolerances import CLOSED
from ..core.worker_threads import POLL


class PausableSolve(Protocol):
    """A solve that may be left and taken up again (:class:`pipeloom.solver.optimize.Solving`)."""

    @property
    def done(self) -> bool: ...

    def begin(self, seconds: float) -> Schedule: ...

    def run(self, seconds: float) -> Schedule: ...

    def explore(self, seconds: float) -> Schedule:
        """Does as :meth:`run`, on one core and in any thread."""
        ...

    def look(self) -> None:
        """Tells the listener and hears an interrupt, while another thread explores."""
        ...

    def beat(self, cost: float) -> None:
        """Lets calls end once no schedule can cost less than ``cost``: with 0 at once."""
        ...


StartSolve: TypeAlias = Callable[[Problem, str], PausableSolve]
"""The solve of a problem, given the name of its placement too."""

HOPE = 1 / 3  # share of the gap to its bound that a search may still close
LEAST_SECONDS = 0.5
QUICK = 0.3  # seconds of a core that show what a placement is good for
EXPLORING = 0.5  # share of the time for finding out which placement is worth the rest
AFTER_STOP = 1.0  # seconds in which placements still get their first schedules after a stop


@dataclass(slots=True, eq=False)
class Contender:
    """A placement that may win: the bound known so far, its search and the best schedule."""

    name: str
    bound: float
    problem: Problem
    note: str = ""
    search: PausableSolve | None = None
    schedule: Schedule | None = None
    spent: float = 0.0

    @property
    def done(self) -> bool:
        return self.search is not None and self.search.done

    @property
    def cost(self) -> float:
        return math.inf if self.schedule is None else iteration_time(self.schedule)

    @property
    def promise(self) -> float:
        """The cost that may be reached: with a third of the gap to its bound closed."""
        return self.cost - HOPE * (self.cost - self.bound) if self.schedule else math.inf

    def take(self, schedule: Schedule) -> None:
        self.schedule = schedule
        known = schedule.report.lower_bound if schedule.report else None
        self.bound = max(self.bound, known or 0.0)

    def go(self, search: Callable[[float], Schedule], seconds: float) -> None:
        began = monotonic()
        self.take(search(seconds))
        self.spent += monotonic() - began


class SuccessiveHalving:
    """The placements that fit; the first of them is searched whatever happens.

    ``abreast``: how many explore side by side, one core each.
    """

    def __init__(self, should_stop: StoppingCriterion, abreast: int) -> None:
        self._time, self._should_stop, self._abreast = TimeLimit(), should_stop, abreast
        self.contenders: list[Contender] = []

    @property
    def best(self) -> Schedule | None:
        """The cheapest schedule; of those that cost the same, the one with the least memory."""
        found = [each.schedule for each in self.contenders if each.schedule is not None]
        return min(found, key=_cost_and_memory, default=None)

    @property
    def cost(self) -> float:
        return min((contender.cost for contender in self.contenders), default=math.inf)

    @property
    def over(self) -> bool:
        return self.cost < math.inf and (self._should_stop() or self._time())

    def run(self, start: StartSolve, seconds: float) -> None:
        """Spends ``seconds`` in all: the least bounds begin, ever fewer explore, the best go on.

        Without a limit of time each that may win runs to its own end.
        """
        self._time = TimeLimit(seconds)
        self._begin(start)
        if seconds < math.inf:
            self._explore()
            self._finish()
        else:
            self._each()

    def _begin(self, start: StartSolve) -> None:
        """Gives each its first schedule, after a stop too: any may be many times the next one's."""
        left: TimeLimit | None = None
        for contender in sorted(self.contenders, key=lambda r: r.bound):
            if self.cost < math.inf and self._should_stop():
                left = left or TimeLimit(AFTER_STOP)
            if self.cost < math.inf and (self._time() or (left is not None and left())):
                return
            if self._may_win(contender):
                contender.search = start(contender.problem, contender.name)
                contender.go(contender.search.begin, self._time.left)

    def _explore(self) -> None:
        """Lets all explore equally long, then the better half of them, then its better half."""
        exploring = self._going_on()
        cores, time = self._abreast, EXPLORING * self._time.left
        rounds = math.ceil(math.log2(max(1, len(exploring))))
        if exploring:
            rounds = max(1, min(rounds, int(time * cores / (QUICK * len(exploring)))))
        for _ in range(rounds):
            if len(exploring) < 2 or self.over:
                return
            turns = math.ceil(len(exploring) / cores)
            for first in range(0, len(exploring), cores):
                self._abreast_for(time / rounds / turns, exploring[first : first + cores])
            still = self._going_on()
            exploring = [contender for contender in still if contender in exploring][
                : (len(exploring) + 1) // 2
            ]

    def _abreast_for(self, seconds: float, contenders: Sequence[Contender]) -> None:
        contenders = [contender for contender in contenders if self._may_win(contender)]
        if self.over or not contenders:
            return
        seconds = min(seconds, self._time.left)
        with ThreadPoolExecutor(len(contenders), "placement") as threads:
            running: set[Future[None]] = set()
            for contender in contenders:
                assert contender.search is not None
                contender.search.beat(self.cost)
                running.add(threads.submit(contender.go, contender.search.explore, seconds))
            while running:
                done, running = wait(running, POLL)
                for each in done:
                    each.result()
                decided = len(self._going_on()) < 2
                for contender in contenders:
                    assert contender.search is not None
                    contender.search.look()
                    if decided:  # the rest of the time is for it alone
                        contender.search.beat(0.0)

    def _each(self) -> None:
        """Lets each that may still win run to its own end, the most promising first."""
        served: set[int] = set()
        while waiting := [r for r in self._going_on() if id(r) not in served]:
            served.add(id(waiting[0]))
            self._advance(waiting[0], math.inf)

    def _finish(self) -> None:
        """Gives the most promising a third of the time left, again and again: mostly the same."""
        while not self.over and (going_on := self._going_on()):
            left = self._time.left
            self._advance(going_on[0], min(left, max(left / 3, LEAST_SECONDS)))

    def _advance(self, contender: Contender, seconds: float) -> None:
        if not self.over:
            assert contender.search is not None
            contender.search.beat(self.cost)
            contender.go(contender.search.run, seconds)

    def _going_on(self) -> list[Contender]:
        """The contenders that have begun and may still win, the most promising first."""
        in_thread = [r for r in self.contenders if r.search is not None and self._may_win(r)]
        return sorted(in_thread, key=lambda contender: contender.promise)

    def _may_win(self, contender: Contender) -> bool:
        return not contender.done and contender.bound < self.cost * (1 - CLOSED)


def _cost_and_memory(schedule: Schedule) -> tuple[float, float]:
    cost = iteration_time(schedule)
    return float(f"{cost:.9g}"), max(schedule.known_timing.peak_memory)
