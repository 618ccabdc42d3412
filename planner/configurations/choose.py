"""The search for the best configurations of a space: configurations are bounded first; of these,
the ones that can still be the best are simulated.

There are three kinds of entries: sets of degrees whose configurations are not bounded yet, and
configurations whose families of schedules are not simulated yet, both processed in ascending order
of lower bound; and simulated configurations for which the optimizer can search for better
schedules, the most promising first. The minimum of all their bounds, and of the best step time, is
the lower bound of the space. Entries whose bound is not below the best step time found are never
processed.

Several configurations are evaluated in parallel. The number of processes does not change the
result.
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
"""Number of configurations whose families are simulated in parallel."""
SEARCHED = 4
"""Number of configurations for which the optimizer searches for schedules in parallel."""
ROUNDS = ((0.7, 0.9), (0.95, 1.0))
"""For each round, two shares of the budget: the simulation of families ends when the first is used
up, and the optimizer's search for schedules when the second is."""
SHARES = (1 / 64, 1 / 16, 1 / 4)
"""Shares of the budget for the first, second and third search of the same configuration's
schedules."""
LEAST_SHARE = 0.01
HOPE = 0.6
"""Share of the gap between step time and lower bound that a search is expected to close; halved
after each search of the configuration."""
UNKNOWN = 1 / 3
"""Relative amount by which a configuration's first schedule is expected to exceed the lower bound;
halved after each search that finds none."""
BOUNDING, EVALUATING = 2e4, 1e6
"""Work per configuration, converted to simulated ops. ``BOUNDING``: for the lower bound from sums
over layers. ``EVALUATING``: for the tighter bound that is computed when families are simulated."""


@dataclass
class Ranking:
    """The result of a search: the evaluated configurations of a space, and a bound on all plans in
    it.

    ``evaluated``: sorted by step time; configurations without a schedule come last.
    ``lower_bound``: lower bound on the step time of all plans in the space, in milliseconds.
    ``spreads``: number of combinations of degrees, microbatch size and recomputation that were
    considered. ``bounded``: number of single configurations for which bounds were computed.
    ``too_large``: up to eight configurations or sets of degrees that do not fit in memory, those
    that need the least memory first; each is a pair of the minimum memory that it needs, in GiB,
    and its name. ``stopped``: whether the search ended before it was complete.
    """

    evaluated: list[Evaluated] = field(default_factory=list)
    lower_bound: float = inf
    spreads: int = 0
    bounded: int = 0
    too_large: list[tuple[float, str]] = field(default_factory=list)
    stopped: bool = False

    def __str__(self) -> str:
        """Return a phrase with three counts: sets of degrees considered, configurations bounded,
        and configurations simulated."""
        return (
            f"{counted(self.spreads, 'set')} of degrees, {self.bounded} of their "
            f"configurations bounded, {len(self.evaluated)} simulated"
        )


class SpaceSearch:
    """A search for the best configurations of ``space``, within the time or work limit of
    ``options``.

    ``progress`` receives notes on new best configurations. ``workers`` runs simulations and the
    optimizer's searches.
    """

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
        """Run the search, and return the configurations found and the lower bound on the whole
        space."""
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
        full = set[TrainingRun]()  # too large; larger microbatches do not fit either
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
        """Evaluate one configuration: of those without a pipeline, the one with the lowest bound.

        It is the fastest of them, because without a pipeline the bound is the exact step time.
        Nothing is evaluated if there is none that fits in memory, or if the caller has asked to
        stop.
        """
        for entry in [entry for entry in self._degrees if entry[2].pp == 1]:
            if self._questions and self._questions[0][0] <= entry[0]:
                break
            self._degrees.remove(entry)
            self._bound(entry[2])
        heapify(self._degrees)
        if self._questions and not self.options.should_stop():
            self._take(self._evaluated(heappop(self._questions)[2]))

    def _evaluate(self, share: float) -> None:
        """Evaluate configurations until none can become the best, or until ``share`` of the budget
        is used."""
        while asked := [*islice(self._next(share), TOGETHER)]:
            for each in asked:
                self._budget.work.spend(EVALUATING + each.simulated_ops)
            self._take_all(self._evaluated, asked)
            for each in asked:
                if each.configuration not in self._found:  # because the caller stopped
                    self._ask(each)

    def _next(self, share: float) -> Iterator[Evaluated]:
        """Yield the configurations that can still become the best, in ascending order of lower
        bound, until ``share`` of the budget is used.

        If the entry with the lowest bound is a set of degrees, its configurations are bounded
        before the next one is yielded.
        """
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
        """Let the optimizer search for better schedules of the configurations that can still become
        the best, the most promising first, until ``share`` of the budget is used."""
        while not self._over(share):
            waiting = [each for each in self._found.values() if self._may_improve(each)]
            if not waiting:
                return
            chosen = nsmallest(SEARCHED, waiting, self._promise)
            self._take_all(self._improved, self._searches_of(chosen, share - self._spent))

    def _searches_of(
        self, chosen: list[Evaluated], left: float
    ) -> list[tuple[Evaluated, SolveOptions]]:
        """Return the arguments of calls of :func:`improve`, as a list of tuples.

        There is one call for each of the first configurations in ``chosen``: as many as fit in
        ``left``, but at least one. ``left``: the share of the budget that remains.
        """
        parallel, work = self.workers.is_parallel(len(chosen)), self._budget.work
        asked: list[tuple[Evaluated, SolveOptions]] = []
        options = replace(self.options, should_stop=stop_asked) if parallel else self.options
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
        """Call ``solve`` with each item of ``asked``, in parallel if there are several workers, and
        record the results in the order of ``asked``.

        If the caller has asked to stop, or the time limit is reached, the remaining items are left
        out.
        """
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
        """The step time, in milliseconds, below which an entry's lower bound must be for the entry
        to be able to become the best."""
        return self._best * (1 - CLOSED)

    def _over(self, share: float) -> bool:
        """Return whether ``share`` of the budget is used, or the caller has asked to stop."""
        return self.options.should_stop() or self._spent >= share

    @property
    def _spent(self) -> float:
        """The share of the budget that is used, from 0 to 1: of the work limit if there is one,
        else of the time limit."""
        time, work = self._budget.time, self._budget.work
        return work.used / work.ops if work.ops < inf else 1 - time.share_left
