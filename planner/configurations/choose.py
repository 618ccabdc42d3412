"""The best configurations of a space: bounded first, then evaluated while they can still win.

There are three queues, each ordered by lower bound: degrees whose configurations are to be bounded,
configurations whose families are to be simulated, and configurations for which the optimizer is to
search a better schedule. The least of all these bounds is the bound of the space. Entries whose
bound is not below the best step found are never processed.

Schedules are searched for several configurations in parallel. The number of processes does not
change the result.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heapify, heappop, heappush, nsmallest
from itertools import count, islice
from math import inf
from typing import TypeAlias, TypeVar

from pipeloom.ir.units import counted
from pipeloom.solver.core.options import SolveOptions
from pipeloom.solver.core.stopping import FirstOf
from pipeloom.solver.core.tolerances import CLOSED

from ..models.run import TrainingRun
from ..solving.progress import Event, Listener, Note
from ..solving.workers import Workers, in_order, stop_asked
from .bounds import Bounds
from .configuration import Configuration
from .evaluation import Evaluated, evaluate, improve, rates_of
from .space import Space

T = TypeVar("T")
Queue: TypeAlias = list[tuple[float, int, T]]
"""A heap of (lower bound, number that breaks ties, entry)."""
TOGETHER = 8
"""Number of configurations that are evaluated in parallel."""
SEARCHED = 4
"""Number of configurations whose schedules are searched in parallel."""
ROUNDS = ((0.7, 0.9), (0.95, 1.0))
"""For each round, the shares of the budget at which evaluation and then the search of schedules
end."""
SHARES = (1 / 64, 1 / 16, 1 / 4)
"""Shares of the budget for the first, second and third search of a configuration's schedules."""
LEAST_SHARE = 0.01
HOPE = 0.6
"""Estimate of the share of the gap to its bound that a search closes; halved after each search."""
UNKNOWN = 1 / 3
"""Estimate, relative to its bound, by which the first schedule of a configuration exceeds it;
halved after each search."""
BOUNDING, EVALUATING = 2e4, 1e6
"""Work equivalents, in simulated ops, of bounding a configuration, and of bounding its
schedules."""


@dataclass
class Ranking:
    """The configurations of a space and the results on them.

    ``evaluated``: sorted by step time; those without a schedule last. ``lower_bound``: bound on the
    step time of all plans in the space, in milliseconds. ``spreads``: number of sets of degrees,
    microbatch and level whose configurations were bounded; ``bounded``: number of these
    configurations. ``too_large``: the configurations nearest to fitting, with the GiB that they
    need at least. ``stopped``: whether the search ended early.
    """

    evaluated: list[Evaluated] = field(default_factory=list)
    lower_bound: float = inf
    spreads: int = 0
    bounded: int = 0
    too_large: list[tuple[float, str]] = field(default_factory=list)
    stopped: bool = False

    def __str__(self) -> str:
        """How much of the space was examined."""
        return (
            f"{counted(self.spreads, 'set')} of degrees bounded, {self.bounded} of their "
            f"configurations bounded, {len(self.evaluated)} simulated"
        )


class SpaceSearch:
    """A search of ``space`` within the time or work limit of ``options``."""

    def __init__(
        self, space: Space, options: SolveOptions, progress: Listener, workers: Workers
    ) -> None:
        self.space, self.options, self.progress, self.workers = space, options, progress, workers
        self.bounds = Bounds(space, rates_of(space.cluster))
        self.device_gib = space.cluster.gpu.memory_gib
        self._evaluated = partial(evaluate, space.model, space.cluster)
        self._improved = partial(improve, space.model, space.cluster)
        self._budget = options.budget
        self._found: dict[Configuration, Evaluated] = {}
        self._searches = Counter[Configuration]()
        self._number, self._best = count(), inf
        self._ranking = Ranking()
        self._degrees: Queue[TrainingRun] = []
        self._questions: Queue[Evaluated] = []

    def choose(self) -> Ranking:
        """The best configurations found, and the lower bound over all."""
        self._degrees = sorted(self._spreads(), key=lambda each: each[:2])
        self._evaluate_alone()
        for evaluated, searched in ROUNDS:
            self._evaluate(evaluated)
            self._improve(searched)
        found = sorted(self._found.values(), key=lambda each: each.rank)
        waiting = [queue[0][0] for queue in (self._degrees, self._questions) if queue]
        self._ranking.evaluated = found
        self._ranking.lower_bound = min([self._best, *waiting, *(e.lower_bound for e in found)])
        self._ranking.too_large = sorted(self._ranking.too_large)[:8]
        self._ranking.stopped = self._over(1.0)
        return self._ranking

    def _spreads(self) -> Iterator[tuple[float, int, TrainingRun]]:
        full = set[TrainingRun]()  # larger microbatches do not fit either
        for run in self.space.degrees():
            self._ranking.spreads += 1
            smallest = replace(run, micro_batch=1)
            if smallest in full:
                continue
            step_ms, gib = self.bounds.of_degrees(run, self.space.shardings(run))
            if gib <= self.device_gib:
                yield step_ms, next(self._number), run
            else:
                self._ranking.too_large.append((gib, Configuration(run, False, ()).name))
                full.add(smallest)

    def _evaluate_alone(self) -> None:
        """Evaluate the best configuration without a pipeline; its bound is its step time."""
        for entry in [entry for entry in self._degrees if entry[2].pp == 1]:
            if self._questions and self._questions[0][0] <= entry[0]:
                break
            self._degrees.remove(entry)
            self._bound(entry[2])
        heapify(self._degrees)
        if self._questions and not self.options.should_stop():
            self._take(self._evaluated(heappop(self._questions)[2]))

    def _evaluate(self, share: float) -> None:
        """Evaluate configurations until none can win, or until this share of the budget is used."""
        while asked := [*islice(self._next(share), TOGETHER)]:
            for each in asked:
                self._budget.work.spend(EVALUATING + each.simulated_ops)
            self._take_all(self._evaluated, asked)
            for each in asked:
                if each.configuration not in self._found:  # stopped early
                    self._ask(each)

    def _next(self, share: float) -> Iterator[Evaluated]:
        """Yield configurations that may win by their bounds. Degrees are bounded when theirs is the
        least."""
        while not self._over(share):
            first = self._questions[0][0] if self._questions else inf
            if self._degrees and self._degrees[0][0] < min(first, self._limit):
                self._bound(heappop(self._degrees)[2])
            elif first < self._limit:
                yield heappop(self._questions)[2]
            else:
                return

    def _bound(self, run: TrainingRun) -> None:
        for configuration in self.space.configurations(run, self.bounds.cut):
            self._ranking.bounded += 1
            self._budget.work.spend(BOUNDING)
            step_ms, gib = self.bounds.of(configuration)
            if gib > self.device_gib:
                self._ranking.too_large.append((gib, configuration.name))
            elif step_ms < self._limit:
                self._ask(Evaluated(configuration, step_ms))

    def _ask(self, question: Evaluated) -> None:
        heappush(self._questions, (question.lower_bound, next(self._number), question))

    def _take(self, found: Evaluated) -> None:
        self._found[found.configuration] = found
        if found.step_ms < self._best:
            self._best = found.step_ms
            name = found.configuration.name
            self.progress(Note(f"{name}, {found.schedule}: {self._best:.1f} ms", routine=True))

    def _improve(self, share: float) -> None:
        """Search schedules for configurations that may still win, the most promising first."""
        while not self._over(share):
            waiting = [each for each in self._found.values() if self._may_improve(each)]
            if not waiting:
                return
            chosen = nsmallest(SEARCHED, waiting, self._promise)
            self._take_all(self._improved, self._searches_of(chosen, share - self._spent))

    def _searches_of(
        self, chosen: list[Evaluated], left: float
    ) -> list[tuple[Evaluated, SolveOptions]]:
        """The arguments of :func:`improve` for as many of ``chosen`` as the share ``left`` of the
        budget allows."""
        spread, work = self.workers.spread(len(chosen)), self._budget.work
        asked: list[tuple[Evaluated, SolveOptions]] = []
        options = replace(self.options, should_stop=stop_asked) if spread else self.options
        for each in chosen:
            wanted = SHARES[self._searches[each.configuration]]
            if asked and wanted > left:
                break
            share = max(LEAST_SHARE, min(left, wanted))
            left -= share
            self._searches[each.configuration] += 1
            if work.ops < inf:
                work.spend(share * work.ops)
            asked.append((each, options.share(share)))
        return asked

    def _take_all(self, solve: Callable[[T], Evaluated], asked: list[T]) -> None:
        """Run ``solve`` for each and record the results in order; stops when the caller does, or
        when time is up."""
        stop = FirstOf(self.options.should_stop, self._budget.time)
        for _, found in in_order(self.workers.run(solve, asked, tell=self._note, should_stop=stop)):
            self._take(found)

    def _note(self, event: Event) -> None:
        if isinstance(event, Note):
            self.progress(event)

    def _may_improve(self, found: Evaluated) -> bool:
        own = found.configuration
        goes_on = self._searches[own] < len(SHARES) and own.run.pp > 1
        return goes_on and self.space.family is None and found.lower_bound < self._limit

    def _promise(self, found: Evaluated) -> float:
        left: float = 0.5 ** self._searches[found.configuration]
        if found.step_ms == inf:
            return found.lower_bound * (1 + UNKNOWN * left)
        return found.step_ms - HOPE * left * (found.step_ms - found.lower_bound)

    @property
    def _limit(self) -> float:
        """An entry can win only if its bound is below this."""
        return self._best * (1 - CLOSED)

    def _over(self, share: float) -> bool:
        """Whether this share of the budget is used, or the caller has stopped."""
        return self.options.should_stop() or self._spent >= share

    @property
    def _spent(self) -> float:
        """The used share of the budget."""
        time, work = self._budget.time, self._budget.work
        return work.used / work.ops if work.ops < inf else 1 - time.share_left
