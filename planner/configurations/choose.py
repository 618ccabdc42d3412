"""The best configurations of a space: bounded first, then evaluated while they can still win.

Degrees wait to have their configurations bounded, configurations to have their families simulated,
and those to have the optimizer look for a better schedule, the least bound first. The least of all
these bounds is that of the space; what is not below the best step found waits in vain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf
from time import monotonic
from typing import TypeAlias, TypeVar

from pipeloom.ir.units import counted
from pipeloom.solver.core.options import SolveOptions
from pipeloom.solver.core.stopping import NEVER, StoppingCriterion
from pipeloom.solver.core.tolerances import CLOSED

from ..models.run import TrainingRun
from ..solving.progress import Listener, Note, unheard
from .bounds import Bounds, ConfigurationBound
from .evaluation import BoundedConfiguration, Evaluated, evaluate, improve
from .space import Configuration, Space

Evaluate: TypeAlias = Callable[[BoundedConfiguration], Evaluated]
Map: TypeAlias = Callable[[Evaluate, Iterable[BoundedConfiguration]], Iterable[Evaluated]]
"""``map``, or an executor's."""
T = TypeVar("T")
Queue: TypeAlias = list[tuple[float, int, T]]
"""A heap of bounds, numbers that tell equal ones apart, and what they are of."""
EXPANDED = 32
"""Degrees whose configurations are bounded at a time."""
TOGETHER = 8
"""Configurations that are evaluated at a time."""
SEARCHING = 0.6
"""Share of the time after which schedules are looked for, whatever still waits for evaluation."""
LEAST_SECONDS = 0.5
HOPE = 1 / 3
"""Share of the gap to its bound that a schedule may still lose."""


@dataclass
class Ranking:
    """The configurations of a space, as far as they are known.

    ``evaluated``: best first; those without a schedule last.
    ``lower_bound``: milliseconds that no plan of the space is below. ``spreads``: sets of degrees,
    microbatch and level, all of which were bounded; ``bounded``: configurations that were.
    ``too_large``: the nearest to fitting that do not, with GiB that they need at least.
    ``stopped``: before its end.
    """

    evaluated: list[Evaluated]
    lower_bound: float
    bounded: int
    spreads: int
    too_large: list[tuple[float, str]]
    stopped: bool


@dataclass
class SpaceSearch:
    """A search of ``space`` for so many ``seconds``."""

    space: Space
    seconds: float
    should_stop: StoppingCriterion = NEVER
    progress: Listener = unheard
    run: Map = map
    bounds: Bounds = field(init=False)

    def __post_init__(self) -> None:
        self.bounds = Bounds(self.space.model, self.space.cluster)
        self._began = monotonic()
        self._found: dict[Configuration, Evaluated] = {}
        self._improved: set[Configuration] = set()
        self._too_large: list[tuple[float, str]] = []
        self._bounded = 0
        self._number = count()
        self._degrees: Queue[TrainingRun] = []
        self._questions: Queue[BoundedConfiguration] = []
        self._best = inf

    def choose(self) -> Ranking:
        """The best configurations found, and the bound of all."""
        self._degrees = [*self._spreads()]
        heapify(self._degrees)
        spreads = len(self._degrees) + len(self._too_large)
        for share in (SEARCHING, 1.0):
            self._evaluate(share)
            self._improve()
        found = sorted(self._found.values(), key=lambda each: (each.step_ms, each.lower_bound))
        return Ranking(
            found, self._least, self._bounded, spreads, sorted(self._too_large)[:8], self._over(1.0)
        )

    @property
    def _least(self) -> float:
        """The bound of the space."""
        waiting = (queue[0][0] for queue in (self._degrees, self._questions) if queue)
        known = (each.lower_bound for each in self._found.values())
        return min([self._best, *waiting, *known])

    def _spreads(self) -> Iterator[tuple[float, int, TrainingRun]]:
        for run in self.space.degrees():
            bound = self.bounds.of_degrees(run, self.space.shardings(run))
            if self._fits(bound, run):
                yield bound.step_ms, next(self._number), run

    def _fits(self, bound: ConfigurationBound, run: TrainingRun) -> bool:
        if bound.memory_gib <= self.space.cluster.gpu.memory_gib:
            return True
        self._too_large.append((bound.memory_gib, Configuration(run, "", False, ()).name))
        return False

    def _evaluate(self, share: float) -> None:
        """Until nothing that waits can win, or this share of the time is over."""
        while not self._over(share):
            for run in self._next(self._degrees, EXPANDED):
                self._bound(run)
            asked = self._next(self._questions, TOGETHER)
            if not asked and not self._waits(self._degrees):
                return
            for each in self.run(evaluate, asked):
                self._take(each)

    def _next(self, queue: Queue[T], most: int) -> list[T]:
        """The least bounds of those that may win."""
        found = list[T]()
        while len(found) < most and self._waits(queue):
            found.append(heappop(queue)[2])
        return found

    def _waits(self, queue: Queue[T]) -> bool:
        return bool(queue) and self._may_win(queue[0][0])

    def _bound(self, run: TrainingRun) -> None:
        space = self.space
        for configuration in space.configurations(run, self.bounds.cut):
            self._bounded += 1
            bound = self.bounds.of(configuration)
            if bound.memory_gib > space.cluster.gpu.memory_gib:
                self._too_large.append((bound.memory_gib, configuration.name))
            elif self._may_win(bound.step_ms):
                asked = BoundedConfiguration(space.model, space.cluster, configuration, bound)
                heappush(self._questions, (bound.step_ms, next(self._number), asked))

    def _take(self, found: Evaluated) -> None:
        self._found[found.configuration] = found
        if found.step_ms < self._best:
            self._best = found.step_ms
            name = found.configuration.name
            self.progress(Note(f"{name}, {found.schedule}: {self._best:.1f} ms", routine=True))

    def _improve(self) -> None:
        """Schedules of those that may still win, the most promising first."""
        while not self._over(1.0):
            waiting = [each for each in self._found.values() if self._may_improve(each)]
            if not waiting:
                return
            chosen = min(waiting, key=_promise)
            left = self.seconds - (monotonic() - self._began)
            seconds = max(LEAST_SECONDS, left / min(4, len(waiting)))
            self._improved.add(chosen.configuration)
            options = SolveOptions(time_limit=min(left, seconds), should_stop=self.should_stop)
            space = self.space
            bound = ConfigurationBound(chosen.lower_bound, chosen.memory_gib)
            asked = BoundedConfiguration(space.model, space.cluster, chosen.configuration, bound)
            self._take(improve(asked, chosen, options))

    def _may_improve(self, found: Evaluated) -> bool:
        own = found.configuration
        new = own not in self._improved and own.run.pp > 1 and self.space.family is None
        return new and self._may_win(found.lower_bound)

    def _may_win(self, bound: float) -> bool:
        return bound < self._best * (1 - CLOSED)

    def _over(self, share: float) -> bool:
        """Whether the share of the time is spent; all of it, where nothing fits yet."""
        spent = monotonic() - self._began
        return self.should_stop() or spent > (share if self._best < inf else 1.0) * self.seconds


def _promise(found: Evaluated) -> float:
    if found.step_ms == inf:
        return found.lower_bound * (1 + HOPE)
    return found.step_ms - HOPE * (found.step_ms - found.lower_bound)


def summary(chosen: Ranking) -> str:
    """How much of the space was looked at."""
    return (
        f"{counted(chosen.spreads, 'spread')} bounded, {chosen.bounded} configurations of those "
        f"that may win, {len(chosen.evaluated)} simulated"
    )
