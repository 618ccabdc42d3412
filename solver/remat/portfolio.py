"""The portfolio with remat: schedules without it, with it on whole stages, then any.

::

    bounds      of the problem with as little memory as any choice leaves (core.relaxations)
    first       one microbatch at a time, and what a list scheduler or a reduction gives at once
    plain       the optimizer without remat, where the memory limit allows any schedule; and
                with one BW for each B and W, where that takes less
    reductions  the optimizer on stages that are recomputed or offloaded whole (whole_stages)
    fits        the optimizer with more memory, its schedules made to fit (repair)
    lists       a list scheduler that recomputes what has no place, its parameters annealed
    relaxation  a better bound (bounds.milp_relaxation)
    annealing   of the orders of the best and of each microbatch's remat, half of them left out at
                a time, and of the best one until the time is up; windows of it by CP-SAT

The last three run in each of the workers side by side, the relaxation in one.

The bounds hold for schedules with remat or without, so what meets them is optimal among all.

Simulated annealing of the order together with what is recomputed, offloaded or fused.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.cost.remat import OFFLOADED, RECOMPUTED, STAYS, choice_of
from pipeloom.ir.cost.simulator import remat_arrays, simulate
from pipeloom.ir.errors import InfeasibleError
from pipeloom.ir.model.ops import IntArray, Op, OpKind, fields_of, pack, pack_all, split_backwards
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule

from ..bounds import lower_bounds
from ..bounds.milp_relaxation import SECONDS, remat_relaxation
from ..core.incumbent import Incumbent
from ..core.methods import Method
from ..core.options import Optimizer, Order, SolveOptions
from ..core.progress import FALLBACK
from ..core.relaxations import fusible, offloadable, plain, recomputable
from ..core.schedule_cost import within_memory
from ..core.stopping import Budget
from ..core.worker_threads import Pieces, Worker, side_by_side, workers_abreast
from ..search.local_search import OrderAnnealer, cooled
from ..search.rounds import improve
from ..search.window_search import WindowSearch
from .fused_backward import fused, fused_neighbours, fused_whole
from .keeping import kept
from .list_tuner import RematListTuner
from .repair import fitted, roomier
from .whole_stages import reductions, returned

# shares of the time left: for schedules without remat, for all reductions, for all fits, for those
# of the list scheduler, for proofs
PLAIN, REDUCED, FITTED, LISTED, PROVED = 0.15, 0.2, 0.25, 0.3, 0.1
FIRST = 0.5  # of the first three shares where there are lists, which come nearer
STARTS = 4  # schedules that are annealed at first

_Solve = Callable[[Problem, float], Schedule]


def search_remat(best: Incumbent, optimizer: Optimizer, options: SolveOptions) -> Pieces:
    """Improves ``best``, whose problem allows remat and which has a schedule; ``optimizer``: for
    problems without."""
    problem, every = best.problem, options.recompute_all
    starts = _Starts(best, every)
    lists = None if every else RematListTuner.of(problem, np.random.default_rng(options.seed))
    solved = partial(_solved, best, optimizer, options, 1.0 if lists is None else FIRST)
    for found in lower_bounds(problem):
        best.raise_bound(found)
    _first(starts, solved, problem, lists)
    yield
    if not every:
        with suppress(InfeasibleError):
            without = solved(plain(problem), PLAIN)
            starts.offer(without.order, without.known_report.method or FALLBACK)
        yield
        if fusible(problem).any():
            with suppress(InfeasibleError):
                rows = fused(problem, solved(fused_whole(problem), PLAIN).order)
                starts.offer(rows, Method.FUSE)
            yield
    yield from _reduced(best, starts, solved, every)
    if problem.limited and not every:
        yield from _fitted(starts, solved, problem)
    number = workers_abreast(best)
    listed, proved = best.budget(LISTED), best.budget(PROVED, SECONDS)
    search = partial(
        _search, shared=starts, listed=listed, proved=proved, of=number, seed=options.seed
    )
    workers: list[Worker] = [partial(search, number=n) for n in range(number)]
    yield from side_by_side(best, workers)


def _first(starts: _Starts, solved: _Solve, problem: Problem, lists: RematListTuner | None) -> None:
    """A schedule at once, by the list scheduler or with the first reduction that fits."""
    if lists is not None:
        for rows in lists.first():
            starts.offer(rows, Method.LIST)
            return
    for reduction in reductions(problem, starts.every):
        reduced = reduction.reduced
        if reduced is not None:
            with suppress(InfeasibleError):
                rows = reduction.expanded(solved(reduced, 0.0).order)
                starts.offer(rows, Method.WHOLE_STAGES)
                return


def _search(  # noqa: PLR0917
    best: Incumbent,
    shared: _Starts,
    listed: Budget,
    proved: Budget,
    number: int,
    of: int,
    seed: int,
) -> Pieces:
    """The part of one worker: lists and relaxation within their budgets, annealing."""
    problem, every, rng = best.problem, shared.every, np.random.default_rng((seed, number))
    starts = shared.part(best, number, of)
    yield from _lists(best, starts, listed, None if every else RematListTuner.of(problem, rng))
    if number == 0:
        # what is left until workers compare next may be nearly nothing, and time be given later on
        _tighten(best, proved if best.limited else best.budget(PROVED, SECONDS))
        yield
    windows = WindowSearch(best, rng, free=not every)
    yield from improve(best, [_Annealing(problem, rng, starts), windows])


def _reduced(best: Incumbent, starts: _Starts, solved: _Solve, every: bool) -> Pieces:
    """Schedules with remat on whole stages."""
    limited = best.problem.limited or every
    whole = list(reductions(best.problem, every)) if limited else []
    for number, reduction in enumerate(whole):
        reduced = reduction.reduced
        if reduced is not None:
            with suppress(InfeasibleError):
                share = REDUCED / (len(whole) - REDUCED * number)
                rows = reduction.expanded(solved(reduced, share).order)
                starts.offer(rows, Method.WHOLE_STAGES)
            yield


def _fitted(starts: _Starts, solved: _Solve, problem: Problem) -> Pieces:
    """Schedules for more memory, made to fit."""
    more = list(roomier(problem))
    for number, with_more in enumerate(more):
        share = FITTED / (len(more) - FITTED * number)
        for rows in fitted(problem, solved(with_more, share).order):
            starts.offer(rows, Method.REPAIR)
        yield


def _lists(
    best: Incumbent, starts: _Starts, budget: Budget, tuner: RematListTuner | None
) -> Pieces:
    """Schedules of the list scheduler."""
    begun = best.work.used
    while tuner is not None and not budget() and best.work.used - begun < budget.work.ops:
        for rows in tuner.round(best):
            starts.offer(rows, Method.LIST)
        yield


def _tighten(best: Incumbent, budget: Budget) -> None:
    """Looks for a better bound where none has met the best schedule."""
    if best.over():
        return
    found = remat_relaxation(best.problem, best.cost, budget)
    if found is not None:
        best.raise_bound(found)


class _Annealing:
    """Anneals the best schedules met."""

    def __init__(self, problem: Problem, rng: np.random.Generator, starts: _Starts) -> None:
        self._annealer = RematAnnealer(problem, rng, starts.every)
        self.able = self._annealer.able
        self._starts = starts
        self._left: list[Order] = []

    def round(self, best: Incumbent) -> None:
        self._left = self._left or self._starts.best()
        while self._left:
            rows = self._annealer.anneal(best, self._left.pop(0))
            self._starts.offer(rows, Method.ANNEAL)
            if best.over():
                break


class _Starts:
    """The best schedules met, of which fewer and fewer are annealed."""

    def __init__(self, best: Incumbent, every: bool) -> None:
        self._best, self.every, self._number = best, every, STARTS
        self._known: list[tuple[float, Order]] = []

    def part(self, best: Incumbent, number: int, of: int) -> _Starts:
        """The part of a worker: each ``of``-th order, from ``number`` on."""
        part = _Starts(best, self.every)
        part._known = self._known[number::of] or self._known[:1]
        return part

    def offer(self, rows: Order, method: str) -> None:
        """Takes an order where it keeps the memory limit and is new, and the same with no R that
        need not be, and with BW's."""
        problem = self._best.problem
        for each in (rows,) if self.every else (rows, kept(problem, rows)):
            for either in (each, fused_neighbours(problem, each)):
                self._take(either, method)

    def _take(self, rows: Order, method: str) -> None:
        problem = self._best.problem
        timing = simulate(Schedule(problem, rows))
        cost = timing.cost(problem.objective)
        if within_memory(problem, timing) and cost not in dict(self._known):
            self._known = sorted([*self._known, (cost, rows)], key=lambda known: known[0])[:STARTS]
            self._best.offer(rows, method, cost)

    def best(self) -> list[Order]:
        """The orders to anneal next; the best of all, whoever met it, among them."""
        order, _, cost = self._best.found()
        if not self._known or (self._number < STARTS and cost < self._known[0][0]):
            self._known = [(cost, order), *self._known]
        self._known = self._known[: self._number]
        self._number = max(1, self._number // 2)
        return [rows for _, rows in self._known]


def _solved(  # noqa: PLR0917
    best: Incumbent,
    optimizer: Optimizer,
    options: SolveOptions,
    part: float,
    problem: Problem,
    share: float,
) -> Schedule:
    """The optimizer's schedule within a share of the time left, of which it gets ``part``."""
    budget = best.budget(part * share)
    found = optimizer(problem, options.part(budget, best.interrupted))
    if best.limited:
        best.work.spend(budget.work.ops)
    return found


def one_at_a_time_with_remat(problem: Problem, every: bool) -> Order:
    """Each microbatch alone, there and back, with as little held as can be while it waits."""
    kept = Costs.of(problem).kept
    choices = kept.argmin(axis=0)
    choices[choices == len(kept) - 1] = OFFLOADED
    if every:
        choices = np.where(recomputable(problem), RECOMPUTED, choices)
    owners = problem.placement.owners
    rows: list[list[Op]] = [[] for _ in range(problem.ranks)]
    for j in range(problem.microbatches):
        for s, rank in enumerate(owners):
            out = int(choices[s] == OFFLOADED)
            rows[rank] += [Op(OpKind.F, s, j), *[Op(OpKind.O, s, j)] * out]
        for s in reversed(range(problem.stages)):
            choice, row = int(choices[s]), rows[owners[s]]
            if choice != STAYS:
                row.append(returned(Op(OpKind.B, s, j), choice))
            row += [Op(OpKind.B, s, j), Op(OpKind.W, s, j)]
    return tuple(map(pack, rows))


FUSED = 3  # the row of the choices that stages may have


class RematAnnealer(OrderAnnealer):
    """Anneals any order, with remat or without. ``every``: stages are recomputed where they may."""

    def __init__(self, problem: Problem, rng: np.random.Generator, every: bool) -> None:
        super().__init__(problem, rng)
        self._problem = problem
        again, out = recomputable(problem), offloadable(problem)
        if every:
            out &= ~again
        stays = ~again | (not every)
        self._ways = np.stack([stays, again, out, fusible(problem)])

    def anneal(self, best: Incumbent, start: Order) -> Order:
        """The best order met from ``start`` on."""
        c, problem = self._costs, self._problem
        choice = choice_of(problem, start)
        rows = tuple(map(self._split, start))
        whole = [np.append(row, self._behind(rank, row)) for rank, row in enumerate(rows)]
        offsets = np.cumsum([0, *map(len, whole)]).astype(np.int64)
        order = np.concatenate(whole)
        stop = offsets[:-1] + np.array(list(map(len, rows)))
        hot, reach = self._draw()
        moves = max(100, int(best.slice // (2 * len(order))))
        reached, least = start, simulate(Schedule(problem, start)).cost(problem.objective)
        for heat in cooled(hot):
            found, chosen, ends = order.copy(), choice.copy(), stop.copy()
            remat = remat_arrays(c, choice), chosen, self._ways, stop, ends
            cost = self._run(best, order, found, least, offsets, remat, heat, moves, reach)
            best.work.spend(2 * moves * len(order))
            if cost < least:
                least = cost
                ranks = zip(offsets.tolist(), ends.tolist(), strict=False)
                reached = tuple(found[a:b] for a, b in ranks)
                best.offer(reached, Method.ANNEAL, cost)
            if best.over():
                break
        return reached

    def _split(self, row: IntArray) -> IntArray:
        """The row with each BW as B and W, where it takes no less."""
        kinds, stages, _ = fields_of(row)
        fused = self._ways[FUSED, stages] & (kinds == OpKind.BW)
        pieces = np.split(row, np.flatnonzero(fused))
        whole = [part[: bool(i)] for i, part in enumerate(pieces)]
        rest = [split_backwards(part[bool(i) :]) for i, part in enumerate(pieces)]
        return np.concatenate([part for both in zip(whole, rest, strict=True) for part in both])

    def _behind(self, rank: int, row: IntArray) -> IntArray:
        """The ops of the rank that might run as well, (N,)."""
        microbatches = np.arange(self._problem.microbatches)
        _, again, out, fused = self._ways
        possible = {OpKind.R: again, OpKind.O: out, OpKind.L: out, OpKind.W: fused}
        ops = [
            pack_all(kind, stage, microbatches)
            for stage in self._problem.placement.stages_of(rank)
            for kind, stages in possible.items()
            if stages[stage]
        ]
        return np.setdiff1d(np.concatenate([*ops, row[:0]]), row)
