"""The order of microbatches that are unlike: constructors, and a search that exchanges them.

An order of ops is a pattern in which microbatches take places: any of them may take any place, on
all ranks alike, or some kinds of op on some stages alone. The constructors say who enters when;
exchanges of two places are annealed (:mod:`.kernels.exchange`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from pipeloom.ir.cost.simulator import Simulator
from pipeloom.ir.model.ops import (
    CLASS_MASK,
    MICROBATCH_SHIFT,
    IntArray,
    OpKind,
    offsets_of,
    split_backwards,
)
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import StageProfile

from ..bounds import lower_bounds
from ..bounds.feasibility import is_feasible
from ..construct.entry_orders import entry_orders
from ..core.incumbent import Incumbent
from ..core.options import Order
from ..core.tolerances import ROUNDING
from ..core.unlike import typical
from ..core.worker_threads import Worker
from .kernels.exchange import anneal_exchanges
from .local_search import OrderAnnealer, by_rank, cooled
from .unrolling import ENDLESS, SmallSearch

WORK = 10_000_000  # simulated ops between two looks at the clock, about 0.2 s
PIECES = 8  # of that, in a round
POOL = 6  # orders that are annealed side by side
NEAR = 1.1  # multiple of the best pattern's cost up to which others are filled in


def relabelled(rows: Order, entry: IntArray) -> Order:
    """The order in which microbatch ``entry[k]`` does what k does in ``rows``."""
    return tuple(
        row & ((1 << MICROBATCH_SHIFT) - 1) | entry[row >> MICROBATCH_SHIFT] << MICROBATCH_SHIFT
        for row in rows
    )


def offer_filled(best: Incumbent, rows: Order, source: str) -> None:
    """Offers what keeps the memory limits of a pattern with the microbatches in each entry order
    that is constructed, and in that of the best schedule."""
    problem, offsets = best.problem, offsets_of(rows)
    simulator = Simulator(problem, offsets)
    limit = np.array(problem.memory_limit) * (1 + ROUNDING)
    for entry in entry_orders(problem):
        filled = relabelled(rows, entry)
        best.work.spend(int(offsets[-1]))
        cost = simulator.cost(np.concatenate(filled))
        if cost < best.cost and (simulator.peak <= limit).all():
            best.offer(filled, source, cost)


class PatternSearch:
    """Searches schedules of the mean microbatch, and fills the best of them in.

    ``largest``: each stage holds the most that it holds of any microbatch, so that any fits into
    the pattern, unless that is too much for a rank; else it holds the mean.
    """

    def __init__(self, best: Incumbent, search: Worker, *, largest: bool) -> None:
        problem = typical(best.problem)
        if largest and is_feasible(most := typical(_with_largest_memory(best.problem))):
            problem = most
        self._small = _Patterns(problem, next(lower_bounds(problem)), ENDLESS)
        self._search = SmallSearch(best, self._small, search)

    @property
    def able(self) -> bool:
        return not (self._search.ended or self._small.closed)

    @property
    def best(self) -> Order | None:
        """The best pattern, of microbatches by their places."""
        return self._small.order

    def round(self, best: Incumbent) -> None:
        self._search.go_on(best)
        for rows in self._small.taken():
            if best.over():
                return
            offer_filled(best, rows, "search")


class _Patterns(Incumbent):
    """An incumbent that keeps what else was offered and is nearly as good."""

    kept: tuple[tuple[float, Order], ...] = ()

    def offer(
        self,
        order: Order,
        source: str,
        cost: float | None = None,
        pairs: tuple[tuple[int, ...], ...] = (),
    ) -> bool:
        cost = self._cost(order, pairs) if cost is None else cost
        if cost <= NEAR * self.cost and not any(pairs):
            self.kept = (*self.kept, (cost, tuple(map(np.copy, order))))
        return super().offer(order, source, cost, pairs)

    def taken(self) -> Iterator[Order]:
        """The orders kept since the last call, the best of those that cost the same first."""
        kept, self.kept = self.kept, ()
        by_cost = {round(cost / self.cost, 6): rows for cost, rows in kept if self.cost > 0}
        yield from (by_cost[cost] for cost in sorted(by_cost) if cost <= NEAR)


def _with_largest_memory(problem: Problem) -> Problem:
    def change(stage: StageProfile) -> StageProfile:
        m_b, m_w = (max(getattr(one, key) for one in stage.each) for key in ("m_b", "m_w"))
        each = tuple(replace(one, m_b=m_b, m_w=m_w) for one in stage.each)
        return replace(stage, m_b=m_b, m_w=m_w, each=each)

    stages = tuple(change(stage) if stage.each else stage for stage in problem.profile.stages)
    return replace(problem, profile=replace(problem.profile, stages=stages))


class EntryOrderAnnealer(OrderAnnealer):
    """Anneals exchanges of microbatches and moves of ops in turn, in a few orders side by side.

    The first is the best schedule's. Others begin as its pattern, or as the best of ``patterns``,
    filled in by an entry order; a new one now and then takes the place of the worst.
    """

    def __init__(self, problem: Problem, rng: np.random.Generator, patterns: PatternSearch) -> None:
        super().__init__(problem, rng)
        self._problem, self._patterns = problem, patterns
        self._entries = list(entry_orders(problem))
        self._pool: list[tuple[float, Order]] = []

    def round(self, best: Incumbent) -> None:
        cost, rows = self._begin(best)
        offsets, order = offsets_of(rows), np.concatenate(rows)
        moves = max(100, WORK // len(order))
        hot, reach = self._draw(0.0)
        wide = float(self._rng.choice((0.2, 0.5, 1.0)))
        for piece, heat in enumerate(cooled(hot, PIECES)):
            found = order.copy()
            best.work.spend(moves * len(order))
            if piece % 2 == 0:
                cost = anneal_exchanges(
                    order, found, cost, offsets, self._arrays, self._makespan, *heat, moves, wide,
                    self._state, best.interrupt.flag,
                )  # fmt: skip
            else:
                cost = self._run(best, order, found, cost, offsets, None, heat, moves, reach)
            order = found.copy()
            best.offer(by_rank(found, offsets), "search", cost)
            if best.over():
                return
        self._pool.append((cost, by_rank(order, offsets)))
        self._pool = sorted(self._pool, key=lambda kept: kept[0])[:POOL]

    def _begin(self, best: Incumbent) -> tuple[float, Order]:
        """A member of the pool, which leaves it, or a new one; the best schedule where that fails.

        The best schedule itself is one half of them.
        """
        assert best.order is not None
        known = best.cost, tuple(map(split_backwards, best.order))
        drawn = self._rng.random()
        if drawn < 0.5 or not self._pool:
            return known if drawn < 0.25 else self._new(known)
        return self._pool.pop(int(self._rng.integers(len(self._pool))))

    def _new(self, known: tuple[float, Order]) -> tuple[float, Order]:
        pattern = self._patterns.best
        if pattern is None or self._rng.random() < 0.5:
            pattern = relabelled(known[1], np.argsort(_entered(known[1])))
        entry = self._entries[int(self._rng.integers(len(self._entries)))].copy()
        for one, other in self._rng.integers(len(entry), size=(int(self._rng.integers(4)), 2)):
            entry[[one, other]] = entry[[other, one]]
        rows = relabelled(pattern, entry)
        simulator = Simulator(self._problem, offsets_of(rows), self._costs)
        cost = simulator.cost(np.concatenate(rows))
        fits = (simulator.peak <= self._arrays.limit).all() and cost < np.inf
        return (cost, rows) if fits else known


def _entered(rows: Order) -> IntArray:
    """The microbatches in the order of their F's on stage 0, (M,)."""
    first = next(row for row in rows if ((row & CLASS_MASK) == int(OpKind.F)).any())
    return np.asarray(first[(first & CLASS_MASK) == int(OpKind.F)] >> MICROBATCH_SHIFT)
