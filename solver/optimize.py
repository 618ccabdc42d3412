"""The optimizer: finds a schedule for a problem and a proven lower bound on the cost.

::

    auto        first schedules; then in parallel: search, proofs, further searches
    heuristic   first schedules, better bounds, search
    exact       first schedules, better bounds, an exact solver

*Search* constructs schedules with many parameter settings, then improves the best one. For that,
the methods of :data:`.methods.METHODS` that serve the problem run in turn; those that found better
schedules lately get more time. *Proofs* (:data:`.workers.PROOFS`) raise the lower bound. All
workers share one incumbent, and the solve ends when the incumbent's cost equals its bound.
"""

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
from .core.incumbent import Incumbent
from .core.kinds import plain, remat, unlike, weights
from .core.methods import Method
from .core.options import Order, SolveOptions
from .core.relaxations import recomputable, recomputing
from .core.schedule_cost import within_memory
from .core.streams import number_of_ops
from .core.unlike import check_planned
from .core.worker_threads import Pieces, has_ended, in_thread, side_by_side, workers_abreast
from .exact import BACKENDS, MOST_OPS
from .proofs import solve_exactly, tighten
from .workers import WorkerSearch, prove

HEURISTIC = ("auto", "heuristic")


def optimize(problem: Problem, options: SolveOptions | None = None, **changes: Any) -> Schedule:
    """Return the best schedule of ``problem`` that is found within the limits of ``options``.

    ``changes``: fields of :class:`.core.options.SolveOptions` that replace those of ``options``.

    The report of the schedule contains its lower bound and its status. The solve ends as soon as
    cost and bound are equal (status optimal). On a keyboard interrupt, or when ``should_stop``
    returns true, the best schedule so far is returned; the solve then waits at most half a second
    for workers that are still running. The same happens at the time limit, but not before a
    schedule other than the trivial one (one microbatch after the other) is found. Activations are
    recomputed or offloaded where that lowers the cost, if the profile has the times and sizes that
    it takes.

    Raises InfeasibleError if no schedule keeps the memory limits or, with streamed weights, if no
    schedule was found that fits on the devices. Raises InputError if the solver is unknown or too
    slow for the problem, or if the optimizer does not support the placement or the microbatches.
    """
    options = replace(options or SolveOptions(), **changes)
    return Solving(_incumbent(problem, options), options).run(options.time_limit)


solve = optimize
"""The public name of :func:`optimize`.

``pipeloom.optimize`` is the planner's function, which also chooses the placement.
"""


def _pieces(best: Incumbent, options: SolveOptions, search: WorkerSearch) -> Pieces:
    """Run the algorithm of :func:`optimize` in pieces; it can be paused after each of them."""
    search.first()
    yield
    if options.solver == "auto":
        others = range(2, workers_abreast(best))
        workers = [search.pieces(), prove(best, options)]
        workers += [WorkerSearch(best, options, number).improve() for number in others]
        yield from side_by_side(best, workers)
        return
    yield from search.construct()
    if plain(best.problem):
        yield from tighten(best)
    if options.solver == "heuristic":
        yield from search.improve()
        return
    while not solve_exactly(best, options.solver, options.seed):
        yield


def _incumbent(problem: Problem, options: SolveOptions) -> Incumbent:
    """Create the incumbent of a solve, and offer it the order ``options.start`` if that is valid.

    Raises InputError if the solver is unknown or too slow for the problem, or if the optimizer does
    not support the placement or the microbatches of the problem. Raises InfeasibleError if no
    schedule fits in memory.
    """
    passing = problem.placement.passing
    if passing is Passing.MIXED and problem.placement.kind is not PlacementKind.BIDIRECTIONAL:
        raise InputError(
            "passing: mixed: optimize plans schedules that pass only activations, or only weights"
        )
    _check_solver(problem, options.solver)
    check_planned(problem)
    problem = recomputing(problem) if options.recompute_all else problem
    best = Incumbent(problem, work_bound(problem), options)
    start = options.start
    if start is not None and _may_start(problem, start, options.recompute_all):
        best.offer(start, Method.START)
    return best


def _check_solver(problem: Problem, solver: str) -> None:
    exact = BACKENDS if problem.placement.passing is Passing.ACTIVATIONS else ()
    known = [*HEURISTIC, *exact]
    if solver not in known:
        raise InputError(f"solver: expected {' or '.join(known)}, got {solver!r}")
    if solver not in HEURISTIC and (unlike(problem) or remat(problem)):
        where = (
            "microbatches are unlike"
            if unlike(problem)
            else "stages are recomputed, offloaded or fused"
        )
        raise InputError(f"solver: expected {' or '.join(HEURISTIC)} where {where}, got {solver!r}")
    ops = number_of_ops(problem)
    if solver in exact and ops > MOST_OPS:
        raise InputError(
            f"solver: expected auto or heuristic for {ops} ops, as {solver} decides the "
            f"order of each pair of ops and takes at most {MOST_OPS}, got {solver!r}"
        )


def _may_start(problem: Problem, order: Order, recompute_all: bool) -> bool:
    """Return whether a solve may start from ``order``.

    It may if the problem passes no weights, ``order`` fits in memory and, with ``recompute_all``,
    ``order`` recomputes every stage that can be recomputed.
    """
    if weights(problem) or not within_memory(problem, simulate(Schedule(problem, order))):
        return False
    stays = (choice_of(problem, order) <= STAYS)[recomputable(problem)]
    return not (recompute_all and bool(stays.any()))


class Solving:
    """A solve that can be paused and continued.

    ``done``: whether the solve has ended, because the best schedule is optimal, everything has been
    tried, the work limit is used up, or Ctrl-C was pressed. :meth:`of`, :meth:`begin` and
    :meth:`run` raise the same errors as :func:`optimize`.
    """

    def __init__(self, best: Incumbent, options: SolveOptions) -> None:
        self.done = False
        self._running: Future[bool] | None = None
        self._best, self._options = best, options
        search = WorkerSearch(best, options)
        search.fall_back()
        self._pieces = _pieces(best, options, search)

    @classmethod
    def of(cls, problem: Problem, options: SolveOptions | None = None, **changes: Any) -> Self:
        """Create a solve of ``problem``.

        ``changes``: fields of :class:`.core.options.SolveOptions` that replace those of
        ``options``. ``options.time_limit`` is ignored; each call of :meth:`begin` and :meth:`run`
        has its own time limit.
        """
        options = replace(options or SolveOptions(), **changes)
        return cls(_incumbent(problem, replace(options, time_limit=0.0)), options)

    def begin(self, seconds: float) -> Schedule:
        """Build the first schedules within ``seconds``, and return the best of them."""
        return self._go(seconds, 1)

    def run(self, seconds: float) -> Schedule:
        """Continue for at most ``seconds``, and return the best schedule so far."""
        return self._go(seconds, None)

    def beat(self, cost: float) -> None:
        """End the solve as soon as it is proven that no schedule costs less than ``cost``.

        This applies to the call that is running and to all later ones. ``cost``: the cost of a
        schedule that another solve has found.
        """
        self._best.beat = cost

    def _go(self, seconds: float, pieces: int | None) -> Schedule:
        best, options = self._best, self._options
        best.resume(seconds)
        try:
            if self._running is None or self._goes_on():  # unfinished work of the last call
                self._running = in_thread(partial(self._advance, pieces))
                self._goes_on()
        except KeyboardInterrupt:  # the best so far is what the user asked for
            best.stop()
            self.done = True
        self.done = self.done or best.closed or best.work()
        if best.order is None and best.lacking is not None:
            raise best.lacking
        bound = lower_bound(best.problem) if options.by_step else None
        return best.schedule(options.solver, options.seed, bound)

    def _goes_on(self) -> bool:
        """Wait for the running thread, and return whether the solve should continue.

        Returns False if the thread was abandoned, if nothing is left to do, or if the solve is
        over.
        """
        assert self._running is not None
        if not has_ended(self._best, self._running):
            return False
        running, self._running = self._running, None
        self.done = running.result()
        return not self.done and not self._best.over()

    def _advance(self, pieces: int | None) -> bool:
        """Run ``pieces`` pieces (None: all pieces), or fewer if the solve is over before.

        Returns whether all pieces of the solve have run.
        """
        for _ in range(pieces) if pieces is not None else count():
            try:
                next(self._pieces)
            except StopIteration:
                return True
            if self._best.over():
                break
        return False
