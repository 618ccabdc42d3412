"""The portfolio behind ``optimize``: from a problem to its best schedule, with a certified
bound."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from itertools import count
from typing import Protocol

import numpy as np

from pipeloom.ir.cost.overlap import pairs_save
from pipeloom.ir.cost.remat import RECOMPUTED, choice_of
from pipeloom.ir.cost.simulator import simulate, timed
from pipeloom.ir.errors import InfeasibleError, InputError
from pipeloom.ir.model.ops import MICROBATCH_SHIFT, STAGE_SHIFT, OpKind
from pipeloom.ir.model.placement import Passing, PlacementKind
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule

from .bounds import lower_bound, lower_bounds, work_bound
from .bounds.low_memory.crossings_search import lanes, worth_trying
from .bounds.milp_relaxation import relaxation
from .construct.linear import Constructor, Rows, settings
from .construct.parameters import Setting
from .construct.warm_start import warm_starts
from .core.bound import Bound
from .core.incumbent import FALLBACK, Incumbent, Listener
from .core.linear_instance import ROUNDING, Chain
from .core.overlap_relaxation import least_times, without_pairs
from .core.relaxations import has_levers, recomputable, recomputing
from .core.worker_threads import Lane, Pieces, begun, has_ended, side_by_side
from .exact import BACKENDS
from .families import synchronous
from .families.base import Family
from .families.bidirectional.chimera import Chimera
from .families.v_shape.zb_v import ZBV
from .remat.portfolio import pull
from .search.averaging_postpass import average_early
from .search.local_search import Annealer, Dispatcher, ListScheduler, Tried, Tuner, building
from .search.overlap_annealing import Pairer
from .search.unrolling import Unroller, fewer_microbatches
from .weight_passing import Memory, WeightSearch

RELAXATION_SECONDS = 3.0
LANES_SECONDS = 10.0
EXACT_OPS = 400
"""Up to how many ops ``auto`` tries an exact solver."""
FIRST_OPS = 2_000_000
"""How many ops are built in the first schedules, before anything runs side by side."""
MANY_OPS = 100_000
"""From how many ops on a family takes seconds to build."""
MOST_LANES = 8
LONGEST_PAUSE = 7
"""Turns that a search waits at most which finds nothing."""


class Round(Protocol):
    """Something that tries to improve the best schedule for a moment; not ``able``: in vain."""

    @property
    def able(self) -> bool: ...

    def round(self, best: Incumbent) -> None: ...


def optimize(
    problem: Problem,
    *,
    solver: str = "auto",
    time_limit: float = 60.0,
    work_limit: float | None = None,
    seed: int = 0,
    progress: Listener | None = None,
    should_stop: Callable[[], bool] | None = None,
    memory: Memory | None = None,
    by_step: bool = False,
    recompute_all: bool = False,
    start: Rows | None = None,
) -> Schedule:
    """The best schedule found within ``time_limit`` seconds, and how good it is known to be.

    With a ``work_limit``, in millions of simulated ops (about a hundred of them take a second on a
    core), the same seed gives the same schedule on every run: ``time_limit`` does not count then,
    nor does the number of cores. Every lane has that much work, other work counts as what takes
    about as long.

    Stops at once where cost and lower bound meet (``status`` optimal). A keyboard interrupt, or
    ``should_stop`` turning true, returns the best so far. What does not end within half a second
    then, or once time is up and a schedule was built, is left: its thread ends by itself.
    ``progress`` is called soon after an improvement and about once a second. ``memory`` says what a
    schedule holds in all; where weights travel it is held against ``device_memory``. ``by_step``:
    there, schedules are compared by their step where iterations follow each other
    (:func:`pipeloom.ir.cost.steady_state.send_points.step_between_ops`), not by the objective;
    ``progress`` is about the step then and its bound, the report about the objective all the same.
    Where the profile says how, activations are recomputed or offloaded where that pays; where it
    has replicas, W's are put in another order in the end so that stages are averaged early
    (:mod:`.search.averaging_postpass`); ``recompute_all``: whatever may be recomputed is.
    ``start``: an order to begin with, of the same stages on the same ranks, left out where memory
    does not hold it. Raises InfeasibleError where no schedule keeps the memory limit, or where
    weights travel none was found that fits on the devices, InputError for a placement or a solver
    that is not known.
    """
    _check(problem, solver)
    problem = recomputing(problem) if recompute_all else problem
    best = _incumbent(problem, time_limit, work_limit, progress, should_stop)
    if problem.placement.passing is Passing.WEIGHTS:
        search = WeightSearch(best, memory, by_step)
        return pass_weights(best, search, solver, seed)
    if start is not None and held(problem, start) and not (recompute_all and _stay(problem, start)):
        best.offer(start, "search")
    return Solving(best, solver, seed, recompute_all).run(time_limit)


def held(problem: Problem, order: Rows) -> bool:
    """Whether memory holds what an order keeps in it."""
    peak = np.array(simulate(Schedule(problem, order)).peak_memory)
    return bool((peak <= np.array(problem.memory_limit) * (1 + ROUNDING)).all())


def _stay(problem: Problem, order: Rows) -> bool:
    """Whether any activations that may be recomputed are not."""
    return bool((choice_of(problem, order) != RECOMPUTED)[recomputable(problem)].any())


def _incumbent(
    problem: Problem,
    time_limit: float,
    work_limit: float | None,
    progress: Listener | None,
    should_stop: Callable[[], bool] | None,
) -> Incumbent:
    work = float("inf") if work_limit is None else work_limit * 1e6
    return Incumbent(
        problem, work_bound(problem), time_limit, progress, should_stop, work_limit=work
    )


class Solving:
    """A solve in which activations travel that may be left and taken up again, as :func:`optimize`
    does it.

    ``done`` where nothing is left to do. Raises what :func:`optimize` does.
    """

    def __init__(
        self, best: Incumbent, solver: str = "auto", seed: int = 0, recompute_all: bool = False
    ) -> None:
        self.done = False
        self._running: Future[bool] | None = None
        self._best, self._solver, self._seed = best, solver, seed
        if has_levers(best.problem):
            self._pieces = pull(
                best, partial(_within, best, solver, seed), seed, every=recompute_all
            )
            return
        best.offer(one_at_a_time(best.problem), FALLBACK)
        self._pieces = _PORTFOLIOS.get(solver, partial(exactly, solver=solver))(best, seed)

    @classmethod
    def of(
        cls,
        problem: Problem,
        *,
        solver: str = "auto",
        work_limit: float | None = None,
        seed: int = 0,
        progress: Listener | None = None,
        should_stop: Callable[[], bool] | None = None,
        recompute_all: bool = False,
    ) -> Solving:
        """One that has not begun."""
        _check(problem, solver)
        problem = recomputing(problem) if recompute_all else problem
        best = _incumbent(problem, 0.0, work_limit, progress, should_stop)
        return cls(best, solver, seed, recompute_all)

    def begin(self, seconds: float) -> Schedule:
        """The first schedules, which may take so long at most; the best of them."""
        return self._go(seconds, 1)

    def run(self, seconds: float) -> Schedule:
        """Goes on for so many seconds, or as far as there is work; the best so far."""
        return self._go(seconds, None)

    def explore(self, seconds: float) -> Schedule:
        """As :meth:`run` on one core, in any thread; :meth:`look` is for the one that made this."""
        self._best.one_lane = True
        try:
            return self._go(seconds, 1)
        finally:
            self._best.one_lane = False

    def look(self) -> None:
        """Tells the listener what is new, asks whether to stop."""
        self._best.interrupted()

    def _go(self, seconds: float, pieces: int | None) -> Schedule:
        self._best.resume(seconds)
        try:
            if self._running is None or self._goes_on():  # what was left takes its time first
                self._running = begun(partial(self._advance, pieces))
                self._goes_on()
        except KeyboardInterrupt:  # the best so far is what the user asked for
            self._best.stop()
            self.done = True
        self._best.gather()
        self.done = self.done or self._best.closed
        return average_early(self._best.schedule(self._solver, self._seed))

    def _goes_on(self) -> bool:
        """Waits for what is running; whether there is time for more."""
        assert self._running is not None
        if not has_ended(self._best, self._running):
            return False
        running, self._running = self._running, None
        self.done = running.result()
        return not self.done and not self._best.over()

    def _advance(self, pieces: int | None) -> bool:
        """Piece by piece, so many of them, until it is over; whether none is left."""
        for _ in range(pieces) if pieces is not None else count():
            try:
                next(self._pieces)
            except StopIteration:
                return True
            if self._best.over():
                break
        return False


def _within(  # noqa: PLR0917
    best: Incumbent, solver: str, seed: int, problem: Problem, seconds: float, work: float | None
) -> Schedule:
    """A problem that is part of another one, for as long as that one is not over."""
    return optimize(
        without_pairs(problem),
        solver=solver,
        time_limit=seconds,
        work_limit=work,
        seed=seed,
        should_stop=best.interrupted,
    )


def _check(problem: Problem, solver: str) -> None:
    passing = problem.placement.passing
    known = list(_PORTFOLIOS)
    if passing is Passing.ACTIVATIONS:
        known += BACKENDS
    if solver not in known:
        raise InputError(f"solver: expected {' or '.join(known)}, got {solver!r}")
    if passing is Passing.MIXED and problem.placement.kind is not PlacementKind.BIDIRECTIONAL:
        raise InputError(
            "passing: mixed: optimize plans schedules in which activations alone travel, or "
            "weights alone"
        )


def pass_weights(best: Incumbent, search: WeightSearch, solver: str, seed: int) -> Schedule:
    """The best schedule in which weights travel, under the bounds in closed form."""
    search.first()
    if not search.by_step:
        bound(best)
    running = begun(partial(search.improve, seed))
    try:
        if has_ended(best, running):
            running.result()
    except KeyboardInterrupt:  # as for activations
        best.stop()
    search.check_memory()
    return best.schedule(solver, seed, lower_bound(best.problem) if search.by_step else None)


def one_at_a_time(problem: Problem) -> Rows:
    """The schedule that needs the least memory: each microbatch alone, there and back."""
    owner = problem.owner
    stages = np.arange(problem.stages)
    back = np.repeat(stages[::-1], 2)
    stage = np.append(stages, back)
    kind = np.append(np.full(problem.stages, OpKind.F), np.tile([OpKind.B, OpKind.W], len(stages)))
    ops = (stage << STAGE_SHIFT | kind) + (
        np.arange(problem.microbatches)[:, None] << MICROBATCH_SHIFT
    )
    ranks = owner[stage].T.ravel()
    counts = np.bincount(ranks, minlength=problem.ranks)
    return tuple(np.split(ops.ravel()[np.argsort(ranks, kind="stable")], counts.cumsum()[:-1]))


def automatically(best: Incumbent, seed: int) -> Pieces:
    """The first schedules, then a search and the proofs side by side."""
    search = start(best, seed)
    yield
    parts: list[Lane] = [search.pieces, partial(prove, seed=seed)]
    parts += [
        partial(search_further, seed=(seed, n)) for n in range(2, 2 if best.limited else cores())
    ]
    resumed = [_resumed(part) for part in parts]
    while True:
        side_by_side(best, resumed[:1] if best.one_lane else resumed)
        if not best.exhausted and not best.one_lane:  # all lanes have come to their end
            return
        yield


def _resumed(lane: Lane) -> Lane:
    """``lane``, which goes on where it was when the same incumbent asks again."""
    resumed: Lane = cache(lane)
    return resumed


def heuristically(best: Incumbent, seed: int) -> Pieces:
    """Constructs, looks for a better bound, then improves."""
    search = start(best, seed)
    yield
    yield from search.construct(best)
    yield from tighten(best)
    yield from search.improve(best)


def exactly(best: Incumbent, seed: int, solver: str) -> Pieces:
    """Constructs, looks for a better bound, then leaves all to an exact solver."""
    search = start(best, seed)
    yield
    yield from search.construct(best)
    yield from tighten(best)
    while not solve_exactly(best, solver, seed):
        yield


_PORTFOLIOS: Mapping[str, Callable[[Incumbent, int], Pieces]] = {
    "auto": automatically,
    "heuristic": heuristically,
}


def cores() -> int:
    """How many lanes run side by side: one a core, two at least."""
    available = getattr(os, "sched_getaffinity", None)
    number = len(available(0)) if available else os.cpu_count() or 1
    return max(2, min(number, MOST_LANES))


def start(best: Incumbent, seed: int) -> Search:
    """Builds the first schedules and finds the bounds in closed form; returns what goes on from
    there."""
    chain = Chain.of(best.problem)
    if chain is None:
        bound(best)
        build_families(best)
        if listable(best.problem) and not best.over():
            ListScheduler(best.problem, np.random.default_rng(seed)).first(best)
        return Search(best, None, seed)
    for order in warm_starts(best.problem, chain):
        best.offer(order, "warm-start")
    bound(best)
    search = Search(best, chain, seed)
    for number, _ in enumerate(search.construct(best)):
        if best.over() or number * search.ops > FIRST_OPS:
            break
    return search


class Search:
    """Constructs schedules, then improves them; a thread may go on where another one left it."""

    def __init__(self, best: Incumbent, chain: Chain | None, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.ops = 3 * best.problem.stages * best.problem.microbatches
        self._annealer = Annealer(best.problem, rng)
        self._rng = rng
        self._tried: list[Tried] = []
        self._constructor = Constructor(best.problem, chain) if chain else None
        self._left: Iterator[Setting] = iter(())
        if chain is not None:
            lags = chain.lags(best.problem.objective)
            self._left = settings(chain, best.bound.value, lags)

    def pieces(self, best: Incumbent) -> Pieces:
        """All of it."""
        yield from self.construct(best)
        yield from self.improve(best)

    def construct(self, best: Incumbent) -> Pieces:
        """Runs the constructors over what is left of their families of settings."""
        for setting in self._left:
            best.spend(building(self.ops))
            assert self._constructor is not None
            rows = self._constructor.build(setting)
            if rows is not None:
                self._tried.append(Tried(self._constructor.cost(rows), setting))
                best.offer(rows, "search", self._tried[-1].cost)
            yield

    def improve(self, best: Incumbent) -> Pieces:
        """Local search, on the orders and on the constructors' settings in turn."""
        rounds: list[Round] = [*pairers(best, self._rng), self._annealer]
        if self._constructor is not None:
            built = self._constructor, self._tried, self._rng
            rounds += [Tuner(*built), Dispatcher(*built, best.problem.objective)]
        elif listable(best.problem):
            scheduler = ListScheduler(best.problem, self._rng)
            if best.source in {FALLBACK, "search"}:  # no family has come nearer
                yield from scheduler.pieces(best)
            rounds.append(scheduler)
        yield from improve(best, [*rounds, *unrollers(best, self._rng)])


def search_further(best: Incumbent, seed: tuple[int, int]) -> Pieces:
    """Local search on the orders, and on those of fewer microbatches, by random numbers of its
    own."""
    rng = np.random.default_rng(seed)
    rounds: list[Round] = [
        *pairers(best, rng),
        *unrollers(best, rng),
        Annealer(best.problem, rng),
    ]
    if Chain.of(best.problem) is None and listable(best.problem):
        rounds.append(ListScheduler(best.problem, rng))
    yield from improve(best, rounds)


def listable(problem: Problem) -> bool:
    """Whether the list scheduler knows the placement: each stage on one rank."""
    return problem.placement.passing is Passing.ACTIVATIONS


def pairers(best: Incumbent, rng: np.random.Generator) -> list[Round]:
    """The search for pairs, where these save time."""
    return [Pairer(best.problem, rng)] if pairs_save(best.problem) else []


def unrollers(best: Incumbent, rng: np.random.Generator) -> list[Round]:
    """The searches of fewer microbatches, where there are many."""

    def search(small: Incumbent) -> Pieces:
        yield from start(small, int(rng.integers(1 << 31))).pieces(small)

    return [Unroller(best, fewer, search) for fewer in fewer_microbatches(best.problem)]


def prove(best: Incumbent, seed: int) -> Pieces:
    """Better bounds; an exact solver where the problem is small; then local search as well."""
    yield from tighten(best)
    yield from interleave(best, seed)
    few = 3 * best.problem.stages * best.problem.microbatches <= EXACT_OPS
    if few and listable(best.problem) and not pairs_save(best.problem):
        while not solve_exactly(best, "cp-sat", seed):
            yield
    yield from search_further(best, (seed, 1))


def bound(best: Incumbent) -> None:
    """Takes the bounds in closed form, one by one until one meets the best schedule."""
    for found in lower_bounds(best.problem):
        best.spend(best.problem.stages**2 * best.problem.microbatches)
        best.raise_bound(found)
        if best.over():
            return


def tighten(best: Incumbent) -> Pieces:
    """Looks for a better bound where the first schedules have not met the one there is."""
    chain = Chain.of(least_times(best.problem))
    if chain is None or best.over():
        return
    allowance = best.allowance(1 / 4, RELAXATION_SECONDS)
    value = relaxation(chain, best.problem.objective, best.cost, allowance)
    best.spend(allowance.used)
    words = "what must happen between four moments on each stage, as a small MILP"
    best.raise_bound(Bound(value, "relaxation", words))
    yield
    if best.over() or not worth_trying(chain):
        return
    lags = chain.lags(best.problem.objective)
    allowance = best.allowance(1 / 3, LANES_SECONDS)
    value = lanes(chain, lags, best.cost, allowance, best.bound.value)
    best.spend(allowance.used)
    words = "memory holds few microbatches, and each on its way up meets all others"
    best.raise_bound(Bound(value * (1 - ROUNDING), "lanes", words))
    yield


def interleave(best: Incumbent, seed: int) -> Pieces:
    """Proofs and schedules where memory holds few microbatches."""
    from .exact.target_bisection import bisect

    chain = Chain.of(best.problem)
    if chain is not None and not pairs_save(best.problem):
        yield from bisect(best, chain, seed)


def improve(best: Incumbent, rounds: Sequence[Round]) -> Pieces:
    """Goes round for as long as any of ``rounds`` can do something.

    One that finds nothing pauses for longer and longer, so that the others have more time.
    """
    pauses, due = [0] * len(rounds), [0] * len(rounds)
    for turn in count():
        if not any(each.able for each in rounds):
            return
        for i, each in enumerate(rounds):
            if each.able and due[i] <= turn:
                before = best.cost
                each.round(best)
                pauses[i] = 0 if best.cost < before else min(2 * pauses[i] + 1, LONGEST_PAUSE)
                due[i] = turn + 1 + pauses[i]
                yield


def solve_exactly(best: Incumbent, solver: str, seed: int) -> bool:
    """Gives the best schedule to an exact solver and takes what it finds and proves.

    It makes no pairs: where these save time, what it proves is no bound. False where it could go
    on, had it more time, or work before lanes compare next.
    """
    if best.over():
        return False
    allowance, bounds_all = best.allowance(), not pairs_save(best.problem)
    incumbent = best.schedule(solver, seed)
    if not bounds_all:
        problem = without_pairs(best.problem)
        incumbent = timed(replace(incumbent, problem=problem, pairs=()))

    def take(found: Schedule) -> None:
        best.offer(found.order, "ilp")

    def raise_to(bound: float) -> None:
        if bounds_all:
            best.raise_bound(Bound(bound, solver, f"{solver} searched all orders"))

    result = BACKENDS[solver](
        incumbent.problem,
        incumbent=incumbent,
        lower_bound=best.bound.value,
        time_limit=best.seconds_left,
        work_limit=allowance.ops,
        seed=seed,
        on_solution=take,
        on_bound=raise_to,
        should_stop=best.interrupted,
    )
    if result.schedule is not None:
        take(result.schedule)
    raise_to(result.lower_bound)
    if not result.complete:
        best.spend(allowance.ops)
    return result.complete


def build_families(best: Incumbent) -> None:
    """Builds every family that has this placement and keeps the memory limit."""
    for family in families_of(best.problem):
        if best.over() and best.built:
            return
        if family.supports(best.problem) is None:
            with suppress(InfeasibleError):  # this shape needs more memory; others may not
                schedule = family.build(best.problem)
                best.offer(schedule.order, family.name, pairs=schedule.pairs)


def families_of(problem: Problem) -> list[Family]:
    """In the order in which they are built: of many ops what builds many schedules to choose from
    comes last."""
    found = [*synchronous(), *fitting(problem)]
    if 3 * problem.stages * problem.microbatches > MANY_OPS:
        found.sort(key=lambda family: isinstance(family, ZBV))
    return found


def fitting(problem: Problem) -> Iterator[Family]:
    """ZB-V with as many chunks as fit, where that is another number than its own; Chimera with
    fewer microbatches."""
    largest = max(stage.m_b for stage in problem.profile.stages)
    if largest > 0 and problem.limited:
        chunks = int(min(problem.memory_limit) * (1 + ROUNDING) / largest)
        if chunks >= ZBV.least and chunks != 2 * problem.ranks:
            yield ZBV(min(chunks, 2 * problem.microbatches))
        if 2 <= chunks <= problem.ranks:
            yield Chimera(most=chunks // 2)
