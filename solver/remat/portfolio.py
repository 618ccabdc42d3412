"""The portfolio for problems with remat: recomputation, offload and fused backwards.

::

    bounds      of relaxations without remat (core.relaxations)
    first       one microbatch at a time; a schedule of the list scheduler or of a reduction
    plain       the optimizer without remat, if the memory limit allows any schedule; and with BW
                in place of B and W, if that is faster
    reductions  the optimizer with whole stages recomputed or offloaded (whole_stages)
    fits        the optimizer with more memory, its schedules made to fit (repair)
    lists       a list scheduler that recomputes what does not fit, with annealed parameters
    relaxation  a better bound, by a MILP (bounds.milp_relaxation)
    annealing   simulated annealing of the best orders and of the choice for each microbatch: half
                of them are dropped each time, and the best is annealed to the end; large
                neighbourhood search on windows of it by CP-SAT

The last three run in every parallel worker, the relaxation only in one. The bounds hold with and
without remat, so a schedule that attains them is optimal among all.
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
from ..search.list_search import ListTuner
from ..search.local_search import OrderAnnealer, cooled
from ..search.rounds import improve
from ..search.window_search import WindowSearch
from .fused_backward import fused, fused_neighbours, fused_whole
from .keeping import kept
from .list_tuner import remat_list_tuner
from .repair import fitted, roomier
from .whole_stages import reductions, returned

# shares of the time left: for schedules without remat, all reductions, all fits, the list
# scheduler, proofs
PLAIN, REDUCED, FITTED, LISTED, PROVED = 0.15, 0.2, 0.25, 0.3, 0.1
FIRST = 0.5  # factor of the first three shares if there are lists, which find better schedules
STARTS = 4  # number of schedules annealed at first

_Solve = Callable[[Problem, float], Schedule]


def search_remat(best: Incumbent, optimizer: Optimizer, options: SolveOptions) -> Pieces:
    """Improve ``best``, whose problem allows remat and which has a schedule.

    ``optimizer``: solves problems without remat.
    """
    problem, every = best.problem, options.recompute_all
    starts = _Starts(best, every)
    lists = None if every else remat_list_tuner(problem, np.random.default_rng(options.seed))
    solved = partial(_solved, best, optimizer, options, 1.0 if lists is None else FIRST)
    for found in lower_bounds(problem):
        best.raise_bound(found)
    _first(best, starts, solved, lists)
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


def _first(best: Incumbent, starts: _Starts, solved: _Solve, lists: ListTuner | None) -> None:
    """Offer a first schedule, of the list scheduler or of the first reduction that fits."""
    rows = lists.first_order(best) if lists is not None else None
    if rows is not None:
        starts.offer(rows, Method.LIST)
        return
    for reduction in reductions(best.problem, starts.every):
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
    """The part of one worker: lists and relaxation within their budgets, then annealing."""
    problem, every, rng = best.problem, shared.every, np.random.default_rng((seed, number))
    starts = shared.part(best, number, of)
    yield from _lists(best, starts, listed, None if every else remat_list_tuner(problem, rng))
    if number == 0:
        # with a work limit, almost nothing may be left until the next exchange; with a time limit,
        # time may have been added since
        _tighten(best, proved if best.limited else best.budget(PROVED, SECONDS))
        yield
    windows = WindowSearch(best, rng, free=not every)
    yield from improve(best, [_Annealing(problem, rng, starts), windows])


def _reduced(best: Incumbent, starts: _Starts, solved: _Solve, every: bool) -> Pieces:
    """Offer schedules with remat on whole stages."""
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
    """Offer schedules for more memory that were made to fit."""
    more = list(roomier(problem))
    for number, with_more in enumerate(more):
        share = FITTED / (len(more) - FITTED * number)
        for rows in fitted(problem, solved(with_more, share).order):
            starts.offer(rows, Method.REPAIR)
        yield


def _lists(best: Incumbent, starts: _Starts, budget: Budget, tuner: ListTuner | None) -> Pieces:
    """Offer schedules of the list scheduler."""
    begun = best.work.used
    while tuner is not None and not budget() and best.work.used - begun < budget.work.ops:
        for rows in tuner.orders(best, np.inf):
            starts.offer(rows, Method.LIST)
        yield


def _tighten(best: Incumbent, budget: Budget) -> None:
    """Compute the MILP bound, unless bound and cost are equal."""
    if best.over():
        return
    found = remat_relaxation(best.problem, best.cost, budget)
    if found is not None:
        best.raise_bound(found)


class _Annealing:
    """Anneals the best schedules found."""

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
    """The best schedules found; fewer and fewer of them are annealed."""

    def __init__(self, best: Incumbent, every: bool) -> None:
        self._best, self.every, self._number = best, every, STARTS
        self._known: list[tuple[float, Order]] = []

    def part(self, best: Incumbent, number: int, of: int) -> _Starts:
        """The share of a worker: every ``of``-th order, from ``number`` on."""
        part = _Starts(best, self.every)
        part._known = self._known[number::of] or self._known[:1]
        return part

    def offer(self, rows: Order, method: str) -> None:
        """Take an order if it keeps the memory limit and is new.

        Also variants of it: without unnecessary R's, and with BW's.
        """
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
        """The orders to anneal next, including the best of all workers."""
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
    """The optimizer's schedule, with ``part`` of a ``share`` of the time left."""
    budget = best.budget(part * share)
    found = optimizer(problem, options.part(budget, best.interrupted))
    if best.limited:
        best.work.spend(budget.work.ops)
    return found


def one_at_a_time_with_remat(problem: Problem, every: bool) -> Order:
    """One microbatch after the other, holding as little as possible while it waits."""
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


FUSED = 3  # row of the choices that a stage may have


class RematAnnealer(OrderAnnealer):
    """Simulated annealing of orders with or without remat.

    ``every``: recompute whatever can be recomputed.
    """

    def __init__(self, problem: Problem, rng: np.random.Generator, every: bool) -> None:
        super().__init__(problem, rng)
        self._problem = problem
        again, out = recomputable(problem), offloadable(problem)
        if every:
            out &= ~again
        stays = ~again | (not every)
        self._ways = np.stack([stays, again, out, fusible(problem)])

    def anneal(self, best: Incumbent, start: Order) -> Order:
        """The best order found from ``start``."""
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
        """The row with each BW as B and W, unless it is faster."""
        kinds, stages, _ = fields_of(row)
        fused = self._ways[FUSED, stages] & (kinds == OpKind.BW)
        pieces = np.split(row, np.flatnonzero(fused))
        whole = [part[: bool(i)] for i, part in enumerate(pieces)]
        rest = [split_backwards(part[bool(i) :]) for i, part in enumerate(pieces)]
        return np.concatenate([part for both in zip(whole, rest, strict=True) for part in both])

    def _behind(self, rank: int, row: IntArray) -> IntArray:
        """The rank's unused ops: R's, O's, L's and W's that its microbatches could have, (N,)."""
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
