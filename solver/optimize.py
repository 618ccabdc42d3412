"""The optimizer: finds a schedule for a problem and a proven lower bound on the cost."""

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
    """Find the best schedule of ``problem`` within the limits of ``options``.

    ``changes``: fields of :class:`.core.options.SolveOptions` that replace those of ``options``.

    The report of the schedule says how good it is: its lower bound and status. The solve stops as
    soon as cost and bound are equal (status optimal). On a keyboard interrupt, or when
    ``should_stop`` returns true, the best schedule so far is returned. A worker thread that is
    still running half a second later is abandoned; the same holds at the time limit, provided that
    a schedule was built. Activations are recomputed or offloaded if the profile says how and the
    cost falls.

    Raises InfeasibleError if no schedule keeps the memory limit or, with streamed weights, if none
    was found that fits on the devices, and InputError for an unknown solver or a placement that
    cannot be planned.
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
"""The public name; ``pipeloom.optimize`` is the planner's function, which also chooses the
placement."""


def _incumbent(problem: Problem, options: SolveOptions) -> Incumbent:
    """Create an incumbent without a schedule.

    Raises InputError if the solver is unknown or too slow for the problem, or if the placement or
    the microbatches of the problem cannot be planned.
    """
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
    """Whether ``order`` fits in memory and, with ``recompute_all``, recomputes all that can be."""
    if not within_memory(problem, simulate(Schedule(problem, order))):
        return False
    stays = (choice_of(problem, order) <= STAYS)[recomputable(problem)]
    return not (recompute_all and bool(stays.any()))


class Solving:
    """A solve with activation passing that can be paused and continued.

    ``done``: nothing is left to do. Raises the same errors as :func:`optimize`.
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
        """Create a solve. Its time limits are those of each call, not ``options.time_limit``."""
        options = replace(options or SolveOptions(), **changes)
        return cls(_incumbent(problem, replace(options, time_limit=0.0)), options)

    def begin(self, seconds: float) -> Schedule:
        """Build the first schedules within ``seconds``; returns the best of them."""
        return self._go(seconds, 1)

    def run(self, seconds: float) -> Schedule:
        """Continue for ``seconds`` or until all is done; returns the best schedule so far."""
        return self._go(seconds, None)

    def explore(self, seconds: float) -> Schedule:
        """Continue as :meth:`run` does, on one core.

        Any thread may call it, while the thread that created this object calls :meth:`look`.
        """
        self._best.one_worker = True
        try:
            return self._go(seconds, 1)
        finally:
            self._best.one_worker = False

    def look(self) -> None:
        self._best.interrupted()

    def beat(self, cost: float) -> None:
        """Stop calls once no schedule can cost less than ``cost``, which is known elsewhere."""
        self._best.beat = cost

    def _go(self, seconds: float, pieces: int | None) -> Schedule:
        self._best.resume(seconds)
        try:
            if self._running is None or self._goes_on():  # unfinished work of the last call
                self._running = in_thread(partial(self._advance, pieces))
                self._goes_on()
        except KeyboardInterrupt:  # the best so far is what the user asked for
            self._best.stop()
            self.done = True
        self._best.gather()
        self.done = self.done or self._best.closed
        return self._best.schedule(self._options.solver, self._options.seed)

    def _goes_on(self) -> bool:
        """Wait for the running work. Returns whether there is more to do, and time for it."""
        assert self._running is not None
        if not has_ended(self._best, self._running):
            return False
        running, self._running = self._running, None
        self.done = running.result()
        return not self.done and not self._best.over()

    def _advance(self, pieces: int | None) -> bool:
        """Run this many pieces (None: all) until the solve is over; whether none is left."""
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
    """Find the best schedule with streamed weights. Its lower bound is a closed form."""
    search = WeightPassingSearch(best, options.memory, options.by_step)
    search.first()
    if not options.by_step:
        closed_form_bounds(best)
    running = in_thread(partial(_search_weights, search, best, options))
    try:
        if has_ended(best, running):
            running.result()
    except KeyboardInterrupt:  # the best so far is returned, as in Solving
        best.stop()
    search.check_memory()
    bound = lower_bound(best.problem) if options.by_step else None
    return best.schedule(options.solver, options.seed, bound)


def _search_weights(search: WeightPassingSearch, best: Incumbent, options: SolveOptions) -> None:
    """Try the families, then search.

    With ``by_step`` schedules are compared by their steady step, and families are left out. If a
    family has the least cost that there is, the search looks for equally fast schedules that send
    less.
    """
    if not options.by_step:
        for schedule in streaming_families(best.problem):
            if best.over():
                break
            search.consider(schedule)
    search.improve(options.seed)
