"""The optimizer: from a problem to its best schedule, with a certified bound."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, Self

from pipeloom.ir.cost.remat import STAYS, choice_of
from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.errors import InputError
from pipeloom.ir.model.placement import Passing, PlacementKind
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule

from .bounds import lower_bound, work_bound
from .construct.one_at_a_time import one_at_a_time
from .core.incumbent import Incumbent
from .core.methods import Method
from .core.options import Order, SolveOptions
from .core.overlap_relaxation import without_overlap
from .core.progress import FALLBACK
from .core.relaxations import has_remat, recomputable, recomputing
from .core.schedule_cost import within_memory
from .core.unlike import check_planned
from .core.worker_threads import has_ended, in_thread
from .exact import BACKENDS, MOST_OPS
from .families.applicable import streaming_families
from .portfolio import PORTFOLIOS, exactly
from .proofs import closed_form_bounds
from .remat.portfolio import one_at_a_time_with_remat, search_remat
from .unlike import plan_unlike
from .weight_passing import WeightPassingSearch


def optimize(problem: Problem, options: SolveOptions | None = None, **changes: Any) -> Schedule:
    """The best schedule found within the limits of ``options``, and how good it is known to be.

    ``changes``: fields of :class:`.core.options.SolveOptions`, by keyword.

    Stops at once where cost and lower bound meet (``status`` optimal). A keyboard interrupt, or
    ``should_stop`` turning true, returns the best so far. A thread that does not end within half a
    second then, or once time is up and a schedule was built, is left to end by itself.
    Activations are recomputed or offloaded where the profile says how and it pays. Raises
    InfeasibleError where no schedule keeps the memory limit, or with streamed weights none was
    found that fits on the devices, InputError for a placement or a solver that is not known.
    """
    options = replace(options or SolveOptions(), **changes)
    best = _incumbent(problem, options)
    if best.problem.placement.passing is Passing.WEIGHTS:
        return pass_weights(best, options)
    start = options.start
    if start is not None and _may_start(best.problem, start, options.recompute_all):
        best.offer(start, Method.START)
    return Solving(best, options).run(options.time_limit)


solve = optimize
"""Its public name: ``pipeloom.optimize`` is the planner's, which chooses the placement, too."""


def _incumbent(problem: Problem, options: SolveOptions) -> Incumbent:
    """An empty incumbent. Raises InputError where the options do not fit the placement, or
    microbatches that are unlike the problem."""
    passing = problem.placement.passing
    known = [*PORTFOLIOS, *(BACKENDS if passing is Passing.ACTIVATIONS else ())]
    if options.solver not in known:
        raise InputError(f"solver: expected {' or '.join(known)}, got {options.solver!r}")
    ops = 3 * problem.stages * problem.microbatches
    if options.solver in BACKENDS and ops > MOST_OPS:
        raise InputError(
            f"solver: expected auto or heuristic for {ops} ops, as {options.solver} decides the "
            f"order of each pair of ops and takes at most {MOST_OPS}, got {options.solver!r}"
        )
    if passing is Passing.MIXED and problem.placement.kind is not PlacementKind.BIDIRECTIONAL:
        raise InputError(
            "passing: mixed: optimize plans schedules that pass activations alone, or weights alone"
        )
    check_planned(problem)
    problem = recomputing(problem) if options.recompute_all else problem
    return Incumbent(problem, work_bound(problem), options)


def _may_start(problem: Problem, order: Order, recompute_all: bool) -> bool:
    """Whether memory holds the order, and it recomputes all that has to be."""
    if not within_memory(problem, simulate(Schedule(problem, order))):
        return False
    stays = (choice_of(problem, order) <= STAYS)[recomputable(problem)]
    return not (recompute_all and bool(stays.any()))


class Solving:
    """A solve for activation passing, as of :func:`optimize`, that may be left and taken up again.

    ``done`` where nothing is left to do. Raises the errors of :func:`optimize`.
    """

    def __init__(self, best: Incumbent, options: SolveOptions) -> None:
        self.done = False
        self._running: Future[bool] | None = None
        self._best, self._options = best, options
        if best.problem.profile.unlike:
            self._pieces = plan_unlike(best, options.seed, options.solver)
            return
        if has_remat(best.problem):
            rows = one_at_a_time_with_remat(best.problem, options.recompute_all)
            best.offer(rows, FALLBACK)
            self._pieces = search_remat(best, _without_pairs, options)
            return
        best.offer(one_at_a_time(best.problem), FALLBACK)
        portfolio = PORTFOLIOS.get(options.solver, partial(exactly, solver=options.solver))
        self._pieces = portfolio(best, options.seed)

    @classmethod
    def of(cls, problem: Problem, options: SolveOptions | None = None, **changes: Any) -> Self:
        """A solve that has not begun; its time is that of the calls, not that of ``options``."""
        options = replace(options or SolveOptions(), **changes)
        return cls(_incumbent(problem, replace(options, time_limit=0.0)), options)

    def begin(self, seconds: float) -> Schedule:
        """Builds the first schedules, for so many seconds at most; returns the best of them."""
        return self._go(seconds, 1)

    def run(self, seconds: float) -> Schedule:
        """Goes on for so many seconds, or as far as there is work; returns the best so far."""
        return self._go(seconds, None)

    def explore(self, seconds: float) -> Schedule:
        """Does as :meth:`run`, on one core and in any thread; the owner's may :meth:`look`."""
        self._best.one_worker = True
        try:
            return self._go(seconds, 1)
        finally:
            self._best.one_worker = False

    def look(self) -> None:
        self._best.interrupted()

    def beat(self, cost: float) -> None:
        """Lets calls end once no schedule can cost less than ``cost``."""
        self._best.beat = cost

    def _go(self, seconds: float, pieces: int | None) -> Schedule:
        self._best.resume(seconds)
        try:
            if self._running is None or self._goes_on():  # what was left takes its time first
                self._running = in_thread(partial(self._advance, pieces))
                self._goes_on()
        except KeyboardInterrupt:  # the best so far is what the user asked for
            self._best.stop()
            self.done = True
        self._best.gather()
        self.done = self.done or self._best.closed
        return self._best.schedule(self._options.solver, self._options.seed)

    def _goes_on(self) -> bool:
        """Waits for what is running; whether there is time for more."""
        assert self._running is not None
        if not has_ended(self._best, self._running):
            return False
        running, self._running = self._running, None
        self.done = running.result()
        return not self.done and not self._best.over()

    def _advance(self, pieces: int | None) -> bool:
        """Runs so many pieces, or until it is over; returns whether none is left."""
        for _ in range(pieces) if pieces is not None else count():
            try:
                next(self._pieces)
            except StopIteration:
                return True
            if self._best.over():
                break
        return False


def _without_pairs(problem: Problem, options: SolveOptions) -> Schedule:
    return optimize(without_overlap(problem), options)


def pass_weights(best: Incumbent, options: SolveOptions) -> Schedule:
    """The best schedule with streamed weights, under the bounds in closed form."""
    search = WeightPassingSearch(best, options.memory, options.by_step)
    search.first()
    if not options.by_step:
        closed_form_bounds(best)
    running = in_thread(partial(_search_weights, search, best, options))
    try:
        if has_ended(best, running):
            running.result()
    except KeyboardInterrupt:  # as for activations
        best.stop()
    search.check_memory()
    bound = lower_bound(best.problem) if options.by_step else None
    return best.schedule(options.solver, options.seed, bound)


def _search_weights(search: WeightPassingSearch, best: Incumbent, options: SolveOptions) -> None:
    """By the objective, families come before the search, which looks for less to send in the same
    time where these are the best there are."""
    if not options.by_step:
        for schedule in streaming_families(best.problem):
            if best.over():
                break
            search.consider(schedule)
    search.improve(options.seed)
