"""The best configurations of a space: bounded first, then evaluated while they can still win.

Degrees wait to have their configurations bounded, configurations to have their families simulated,
and those to have the optimizer look for a better schedule, the least bound first. The least of all
these bounds is that of the space; what is not below the best step found waits in vain.

Schedules are looked for in several configurations at a time, on whatever processes there are: how
many these are changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush, nsmallest
from itertools import count, islice
from math import inf
from typing import TypeAlias, TypeVar

from pipeloom.ir.units import counted
from pipeloom.solver.core.options import SolveOptions
from pipeloom.solver.core.stopping import FirstOf
from pipeloom.solver.core.tolerances import CLOSED

from ..models.run import TrainingRun
from ..solving.progress import Event, Listener, Note, unheard
from ..solving.workers import Workers, in_order, stop_asked
from .bounds import Bounds
from .configuration import Configuration
from .evaluation import Asked, Evaluated, evaluate, improve, simulated_ops
from .space import Space

T = TypeVar("T")
Queue: TypeAlias = list[tuple[float, int, T]]
"""A heap of bounds, numbers that tell equal ones apart, and what they are of."""
TOGETHER = 8
"""Configurations that are evaluated at a time."""
SEARCHED = 4
"""Configurations whose schedules are searched at a time."""
ROUNDS = ((0.7, 0.9), (0.95, 1.0))
"""Shares of the budget until which configurations are evaluated, and then schedules searched."""
SHARES = (1 / 64, 1 / 16, 1 / 4)
"""Of the budget, for the first search of a configuration's schedules and for those after it."""
LEAST_SHARE = 0.01
HOPE = 0.6
"""Share of the gap to its bound that a schedule may still lose; half of it after each search."""
UNKNOWN = 1 / 3
"""Share of its bound that the first schedule of a configuration may be above it; half of it after
each search."""
BOUNDING, EVALUATING = 2e4, 1e6
"""Simulated ops that take about as long as bounding a configuration, and as the bounds of its
schedules."""


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
    """A search of ``space`` within the time, or the work, of ``options``."""

    space: Space
    options: SolveOptions
    progress: Listener = unheard
    workers: Workers = field(default_factory=Workers)
    bounds: Bounds = field(init=False)

    def __post_init__(self) -> None:
        self.bounds = Bounds(self.space)
        self._budget = self.options.budget
        self._found: dict[Configuration, Evaluated] = {}
        self._searches = Counter[Configuration]()
        self._too_large: list[tuple[float, str]] = []
        self._spread = self._bounded = 0
        self._number = count()
        self._degrees: Queue[TrainingRun] = []
        self._questions: Queue[Evaluated] = []
        self._best = inf

    def choose(self) -> Ranking:
        """The best configurations found, and the bound of all."""
        self._degrees = sorted(self._spreads(), key=lambda each: each[:2])
        self._evaluate_alone()
        self._evaluate_fsdp()
        for evaluated, searched in ROUNDS:
            self._evaluate(evaluated)
            self._improve(searched)
        found = sorted(self._found.values(), key=lambda each: each.rank)
        counts, large = (self._bounded, self._spread), sorted(self._too_large)[:8]
        return Ranking(found, self._least, *counts, large, self._over(1.0))

    @property
    def _least(self) -> float:
        """The bound of the space."""
        waiting = (queue[0][0] for queue in (self._degrees, self._questions) if queue)
        known = (each.lower_bound for each in self._found.values())
        return min([self._best, *waiting, *known])

    def _spreads(self) -> Iterator[tuple[float, int, TrainingRun]]:
        full = set[TrainingRun]()  # of which larger microbatches do not fit either
        for run in self.space.degrees():
            self._spread += 1
            smallest = replace(run, micro_batch=1)
            if smallest in full:
                continue
            step_ms, gib = self.bounds.of_degrees(run, self.space.shardings(run))
            if gib <= self.space.cluster.gpu.memory_gib:
                yield step_ms, next(self._number), run
            else:
                self._too_large.append((gib, Configuration(run, "", False, ()).name))
                full.add(smallest)

    def _evaluate_alone(self) -> None:
        """The best of those without a pipeline, whose bounds are their times."""
        for entry in [entry for entry in self._degrees if entry[2].pp == 1]:
            if self._questions and self._questions[0][0] <= entry[0]:
                break
            self._degrees.remove(entry)
            self._bound(entry[2])
        heapify(self._degrees)
        if self._questions and not self.options.should_stop():
            self._take(evaluate(self._asked(heappop(self._questions)[2])))

    def _evaluate_fsdp(self) -> None:
        """The best of FSDP over all GPUs, the usual baseline, whether or not it may win."""
        space = self.space
        runs = (run for run in space.degrees() if run.dp == run.gpus > 1)
        each = (one for run in runs for one in space.configurations(run, self.bounds.cut))
        bounded = [(one, self.bounds.of(one)) for one in each if one.is_fsdp]
        device = space.cluster.gpu.memory_gib
        fitting = [Evaluated(one, step_ms) for one, (step_ms, gib) in bounded if gib <= device]
        if fitting and not self.options.should_stop():
            self._take(evaluate(self._asked(min(fitting, key=lambda each: each.lower_bound))))

    def _evaluate(self, share: float) -> None:
        """Until nothing that waits can win, or this share of the time is over."""
        while asked := [*islice(self._next(share), TOGETHER)]:
            for each in asked:
                self._budget.work.spend(EVALUATING + simulated_ops(each.configuration))
            self._take_all(evaluate, [*map(self._asked, asked)])
            for each in asked:
                if each.configuration not in self._found:  # there was a stop
                    self._ask(each)

    def _next(self, share: float) -> Iterator[Evaluated]:
        """Yields those that may win by their bounds; degrees are bounded once theirs is least."""
        while not self._over(share):
            first = self._questions[0][0] if self._questions else inf
            if self._waits(self._degrees) and self._degrees[0][0] < first:
                self._bound(heappop(self._degrees)[2])
            elif self._waits(self._questions):
                yield heappop(self._questions)[2]
            else:
                return

    def _waits(self, queue: Queue[T]) -> bool:
        return bool(queue) and self._may_win(queue[0][0])

    def _bound(self, run: TrainingRun) -> None:
        space = self.space
        for configuration in space.configurations(run, self.bounds.cut):
            self._bounded += 1
            self._budget.work.spend(BOUNDING)
            step_ms, gib = self.bounds.of(configuration)
            if gib > space.cluster.gpu.memory_gib:
                self._too_large.append((gib, configuration.name))
            elif self._may_win(step_ms):
                self._ask(Evaluated(configuration, step_ms))

    def _ask(self, question: Evaluated) -> None:
        heappush(self._questions, (question.lower_bound, next(self._number), question))

    def _asked(self, known: Evaluated) -> Asked:
        return self.space.model, self.space.cluster, known

    def _take(self, found: Evaluated) -> None:
        self._found[found.configuration] = found
        if found.step_ms < self._best:
            self._best = found.step_ms
            name = found.configuration.name
            self.progress(Note(f"{name}, {found.schedule}: {self._best:.1f} ms", routine=True))

    def _improve(self, share: float) -> None:
        """Schedules of those that may still win, the most promising first."""
        while not self._over(share):
            waiting = [each for each in self._found.values() if self._may_improve(each)]
            if not waiting:
                return
            chosen = nsmallest(SEARCHED, waiting, self._promise)
            self._take_all(improve, self._searches_of(chosen, share - self._spent))

    def _searches_of(
        self, chosen: list[Evaluated], left: float
    ) -> list[tuple[Asked, SolveOptions]]:
        """Asks for schedules, of as many as ``left``, a share of the budget, is enough for."""
        spread, work = self.workers.spread(len(chosen)), self._budget.work
        asked: list[tuple[Asked, SolveOptions]] = []
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
            asked.append((self._asked(each), options.share(share)))
        return asked

    def _take_all(self, solve: Callable[[T], Evaluated], asked: list[T]) -> None:
        """In order; fewer after a stop, or once time is up."""
        stop = FirstOf(self.options.should_stop, self._budget.time)
        for _, found in in_order(self.workers.run(solve, asked, tell=self._note, should_stop=stop)):
            self._take(found)

    def _note(self, event: Event) -> None:
        if isinstance(event, Note):
            self.progress(event)

    def _may_improve(self, found: Evaluated) -> bool:
        own = found.configuration
        goes_on = self._searches[own] < len(SHARES) and own.run.pp > 1
        return goes_on and self.space.family is None and self._may_win(found.lower_bound)

    def _promise(self, found: Evaluated) -> float:
        left: float = 0.5 ** self._searches[found.configuration]
        if found.step_ms == inf:
            return found.lower_bound * (1 + UNKNOWN * left)
        return found.step_ms - HOPE * left * (found.step_ms - found.lower_bound)

    def _may_win(self, bound: float) -> bool:
        return bound < self._best * (1 - CLOSED)

    def _over(self, share: float) -> bool:
        """Whether the share of the budget is spent."""
        return self.options.should_stop() or self._spent >= share

    @property
    def _spent(self) -> float:
        """Share of the budget."""
        time, work = self._budget.time, self._budget.work
        return work.used / work.ops if work.ops < inf else 1 - time.share_left


def summary(chosen: Ranking) -> str:
    """How much of the space was looked at."""
    return (
        f"{counted(chosen.spreads, 'set')} of degrees bounded, {chosen.bounded} of their "
        f"configurations bounded, {len(chosen.evaluated)} simulated"
    )
