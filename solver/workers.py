"""The two kinds of workers of a solve: all search for schedules; one proves bounds before that."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from pipeloom.ir.model.problem import Problem

from .bounds.milp_relaxation import SECONDS, remat_relaxation
from .construct.linear import settings
from .construct.one_at_a_time import one_at_a_time
from .construct.round_based import RoundParameters
from .construct.warm_start import warm_starts
from .core.incumbent import Incumbent
from .core.kinds import even, linear, paired, plain, remat, two_copies, unlike, weights
from .core.methods import Method
from .core.options import MOST_SEEDS, SolveOptions
from .core.progress import FALLBACK
from .core.streams import as_many_each_way, number_of_ops
from .core.worker_threads import Pieces
from .families.applicable import build_families
from .methods import METHODS, RELATED, Context, Row
from .proofs import closed_form_bounds, interleave, solve_exactly, tighten
from .remat.relations import one_at_a_time_with_remat
from .search.constructor_search import building
from .search.periodic_search import search_periodic
from .search.rounds import MethodTurns, Round

EXACT_OPS = 400  # maximum number of ops for which ``auto`` tries an exact solver
FIRST_OPS = 2_000_000  # total ops of the schedules that are built before workers run in parallel
LEFT = 0.9  # share of the time or work left at which the first periodic search ends
UNROLLED = 0.6  # only unrolling runs first, until this share of the time is left,
CLOSE = 0.003  # or the cost is at most this above the bound, relative to the bound,
VAIN_ROUNDS = 8  # or this many rounds in a row found nothing
AHEAD = 2  # with several stages per rank, each worker begins this many methods after the one before
MOVED = {FALLBACK, Method.START, Method.LIST, Method.ANNEAL, Method.FILL, Method.PAIR}
"""Methods whose schedules are neither families nor repeated patterns.

If the best schedule is of one of these methods, no family and no repeated pattern was better.
"""
PROVED = 0.1  # share of the remaining time for the relaxation with remat


class WorkerSearch:
    """The search that one worker runs: it builds schedules, and improves the best one.

    ``number``: the number of the worker. Worker 0 also constructs schedules; all others only
    improve the best one.
    """

    def __init__(self, best: Incumbent, options: SolveOptions, number: int = 0) -> None:
        self._context = Context(best, options, number, self._alone)
        self._best, self._problem, self._options = best, best.problem, options
        self._ops = number_of_ops(best.problem)

    @cached_property
    def _turns(self) -> MethodTurns:
        methods = [MethodTurns(parts) for parts in self._served(METHODS)]
        later = AHEAD * self._context.number % len(methods) if even(self._problem) else 0
        return MethodTurns([*methods[later:], *methods[:later]])

    @cached_property
    def _related(self) -> list[Round]:
        return [part for parts in self._served(RELATED) for part in parts]

    def _served(self, table: Sequence[Row]) -> Iterator[list[Round]]:
        """For each method in ``table`` that serves the problem, yield the list of its parts.

        Methods whose ``workers`` do not include this worker are left out.
        """
        for row in table:
            if self._context.number in row.workers and row.serves(self._problem):
                yield list(row.begin(self._context))

    @cached_property
    def _left(self) -> Iterator[RoundParameters]:
        if self._context.number or not linear(self._problem):
            return iter(())
        return settings(self._problem, self._context.constructor.linear, self._best.bound.value)

    def fall_back(self) -> None:
        """Build a simple schedule, so that the solve has a result even if it ends immediately."""
        best, problem = self._best, self._problem
        if weights(problem):
            self._context.streams.first()
        elif remat(problem):
            best.offer(one_at_a_time_with_remat(problem, self._options.recompute_all), FALLBACK)
        else:
            best.offer(one_at_a_time(problem), FALLBACK)

    def first(self) -> None:
        """Raise the bound by the closed-form bounds, and build the first schedules."""
        best, problem = self._best, self._problem
        if not self._options.by_step:
            closed_form_bounds(best)
        if linear(problem):
            self._construct_first()
        elif plain(problem) or unlike(problem):
            self._build()
        elif self._related:
            self._related[0].round(best)
        elif self._turns.able:
            self._turns.round(best)

    def _construct_first(self) -> None:
        """Offer the warm starts, then schedules constructed with the first parameter settings."""
        for order in warm_starts(self._problem, self._context.constructor.linear):
            self._best.offer(order, Method.WARM_START)
        for number, _ in enumerate(self.construct()):
            if self._best.over() or number * self._ops > FIRST_OPS:
                break

    def _build(self) -> None:
        """Build the families, repeated patterns, and one schedule by list scheduling."""
        best, problem = self._best, self._problem
        build_families(best)
        for _ in search_periodic(best):
            if best.over() or best.method == Method.PERIODIC or best.share_left < LEFT:
                break
        if as_many_each_way(problem) and not best.over():
            self._context.lists.first(best)

    def construct(self) -> Pieces:
        """Construct schedules with the settings of the constructor that were not tried yet.

        Then worker 0 constructs one with the list scheduler. There are settings only for worker 0,
        and only if each rank runs one stage (:func:`.linear`).
        """
        for parameters in self._left:
            self._best.work.spend(building(self._ops))
            rows = self._context.constructor.build(parameters)
            if rows is not None:
                cost = self._context.constructor.cost(rows)
                self._context.tried.append((cost, parameters))
                self._best.offer(rows, Method.ROUNDS, cost)
            yield
        if self._context.number == 0 and linear(self._problem) and not self._best.over():
            self._context.lists.first(self._best)
            yield

    def improve(self) -> Pieces:
        """Improve the best schedule: by the methods that run once, then by all others in turn."""
        best, context = self._best, self._context
        for part in self._related:
            while part.able:
                part.round(best)
                yield
        if context.number == 0 and not linear(self._problem):
            yield from self._unroll()
        if unlike(self._problem) or (
            context.number == 0 and even(self._problem) and best.method in MOVED
        ):
            yield from context.lists.pieces(best)
        yield from self._turns.pieces(best)

    def _unroll(self) -> Pieces:
        """Search problems with fewer microbatches, one after the other.

        This ends when the share of time left falls to :data:`UNROLLED`, or when cost and bound are
        close. The search of one problem ends after :data:`VAIN_ROUNDS` rounds in a row without a
        better schedule.
        """
        best = self._best
        for unroller in self._context.unrollers[1:]:
            vain = 0
            while unroller.able and best.share_left > UNROLLED and vain < VAIN_ROUNDS:
                if best.cost <= (1 + CLOSE) * best.bound.value:
                    break
                before = unroller.small.cost
                unroller.round(best)
                vain = 0 if unroller.small.cost < before else vain + 1
                yield

    def pieces(self) -> Pieces:
        """Construct schedules, then improve the best one, in pieces.

        The search can be paused after each piece.
        """
        yield from self.construct()
        yield from self.improve()

    def _alone(self, small: Incumbent) -> Pieces:
        """Search a problem related to this one, in pieces.

        ``small``: the incumbent of the related problem.
        """
        options = SolveOptions(seed=int(self._context.rng.integers(MOST_SEEDS)))
        search = WorkerSearch(small, options)
        search.fall_back()
        search.first()
        yield from search.pieces()


class Proof(NamedTuple):
    """A method that raises the lower bound, and may find schedules.

    ``serves``: whether the method applies to a problem. ``pieces``: runs the method, given the
    incumbent and a random seed.
    """

    serves: Callable[[Problem], bool]
    pieces: Callable[[Incumbent, int], Pieces]


def _relaxation(best: Incumbent, _: int) -> Pieces:
    if not best.over():
        found = remat_relaxation(best.problem, best.cost, best.budget(PROVED, SECONDS))
        if found is not None:
            best.raise_bound(found)
    yield


def _exact(best: Incumbent, seed: int) -> Pieces:
    while not solve_exactly(best, "cp-sat", seed):
        yield


def _interleaved(problem: Problem) -> bool:
    return plain(problem) or unlike(problem)


def _small(problem: Problem) -> bool:
    few = number_of_ops(problem) <= EXACT_OPS
    return few and plain(problem) and not (two_copies(problem) or paired(problem))


PROOFS = (
    Proof(remat, _relaxation),
    Proof(plain, lambda best, _: tighten(best)),
    Proof(_interleaved, interleave),
    Proof(_small, _exact),
)


def prove(best: Incumbent, options: SolveOptions) -> Pieces:
    """Run the proofs that apply to the problem, then improve the best schedule as worker 1."""
    for proof in PROOFS:
        if proof.serves(best.problem):
            yield from proof.pieces(best, options.seed)
    yield from WorkerSearch(best, options, 1).improve()
