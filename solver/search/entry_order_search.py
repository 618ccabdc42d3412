"""The order of microbatches that are unlike: constructors, and a search that exchanges them.

An order of ops is a pattern in which microbatches take places: any of them may take any place, on
all ranks alike, or some kinds of op on some stages alone. The constructors say who enters when; the
kernel anneals exchanges of two places. Each order is simulated with its own times, and dropped
where its memory exceeds a limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from pipeloom.ir.cost.simulator import Simulator, run_kernel
from pipeloom.ir.kernels import kernel
from pipeloom.ir.model.ops import (
    CLASS_MASK,
    KIND_MASK,
    MICROBATCH_SHIFT,
    STAGE_MASK,
    STAGE_SHIFT,
    FloatArray,
    IntArray,
    OpKind,
    offsets_of,
    split_backwards,
)
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import StageProfile

from ..bounds import lower_bounds
from ..construct.entry_orders import entry_orders
from ..core.incumbent import Incumbent
from ..core.kernel_rng import random
from ..core.options import Order, SolveOptions
from ..core.tolerances import ROUNDING
from ..core.unlike import typical
from ..core.worker_threads import Pieces
from .local_search import OrderAnnealer

WORK = 10_000_000  # simulated ops between two looks at the clock, about 0.2 s
PIECES = 8  # of that, in a round
COLD = 0.03  # the last temperature of a round, in units of the first
PATTERN_WORK = 40_000_000  # simulated ops in a round on patterns
ENDLESS = 1e290  # a work limit, so that the search of patterns looks at no clock
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

    ``largest``: of its memory, so that the pattern holds any microbatch; else the mean's.
    """

    def __init__(
        self, best: Incumbent, search: Callable[[Incumbent], Pieces], *, largest: bool
    ) -> None:
        problem = typical(_with_largest_memory(best.problem) if largest else best.problem)
        self._small = _Patterns(
            problem, next(lower_bounds(problem)), SolveOptions(work_limit=ENDLESS)
        )
        self._small.interrupt = best.interrupt
        self._pieces, self._ended = search(self._small), False

    @property
    def able(self) -> bool:
        return not (self._ended or self._small.closed)

    @property
    def best(self) -> Order | None:
        """The best pattern, of microbatches by their places."""
        return self._small.order

    def round(self, best: Incumbent) -> None:
        small, before = self._small, self._small.work.used
        self._ended = True
        for _ in self._pieces:
            if small.over() or small.work.used - before > PATTERN_WORK:
                self._ended = small.closed
                break
        best.work.spend(small.work.used - before)
        for rows in small.taken():
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
        self._limit = self._costs.limit * (1 + ROUNDING)
        self._pool: list[tuple[float, Order]] = []

    def round(self, best: Incumbent) -> None:
        cost, rows = self._begin(best)
        offsets, order = offsets_of(rows), np.concatenate(rows)
        moves = max(100, WORK // len(order))
        hot, reach = self._draw(0.0)
        wide = float(self._rng.choice((0.2, 0.5, 1.0)))
        for piece in range(PIECES):
            found, warm = order.copy(), hot * COLD ** (piece / PIECES)
            heat = warm, warm * COLD ** (1 / PIECES)
            best.work.spend(moves * len(order))
            if piece % 2 == 0:
                cost = self._exchanged(best, order, found, cost, offsets, heat, moves, wide)
            else:
                cost = self._run(best, order, found, cost, offsets, None, heat, moves, reach)
            order = found.copy()
            best.offer(tuple(np.split(found, offsets[1:-1])), "search", cost)
            if best.over():
                return
        self._pool.append((cost, tuple(np.split(order, offsets[1:-1]))))
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
        return (cost, rows) if (simulator.peak <= self._limit).all() and cost < np.inf else known

    def _exchanged(  # noqa: PLR0917
        self,
        best: Incumbent,
        order: IntArray,
        found: IntArray,
        cost: float,
        offsets: IntArray,
        heat: tuple[float, float],
        moves: int,
        wide: float,
    ) -> float:
        c = self._costs
        return exchange_kernel(
            order, found, cost, offsets, c.durations, c.owner, c.into_f, c.into_b, c.m_b, c.m_w,
            self._limit, self._makespan, *heat, moves, wide, self._state, best.interrupt.flag,
        )  # fmt: skip


def _entered(rows: Order) -> IntArray:
    """The microbatches in the order of their F's on stage 0, (M,)."""
    first = next(row for row in rows if ((row & CLASS_MASK) == int(OpKind.F)).any())
    return np.asarray(first[(first & CLASS_MASK) == int(OpKind.F)] >> MICROBATCH_SHIFT)


@kernel
def _exchange(  # noqa: PLR0917
    order: IntArray, place: IntArray, one: int, other: int, kinds: int, since: int, until: int
) -> None:
    """Two microbatches exchange places in the ops of these kinds (bits) on stages since..until."""
    by = (other - one) << MICROBATCH_SHIFT
    for kind in range(3):
        if kinds >> kind & 1:
            for stage in range(since, until):
                first, second = place[kind, stage, one], place[kind, stage, other]
                order[first] += by
                order[second] -= by
                place[kind, stage, one], place[kind, stage, other] = second, first


@kernel
def _cost(
    offsets: IntArray, start: FloatArray, end: FloatArray, makespan: bool
) -> tuple[float, float]:
    """The cost, and with what all ranks span on top, which tells apart orders of equal cost."""
    span, total, last, opens = 0.0, 0.0, 0.0, np.inf
    for r in range(len(offsets) - 1):
        if offsets[r + 1] > offsets[r]:
            begins, ends = start[offsets[r]], end[offsets[r + 1] - 1]
            total, last, opens = total + ends - begins, max(last, ends), min(opens, begins)
            span = max(span, ends - begins)
    cost = last - opens if makespan else span
    return cost, cost + 0.1 * total / (len(offsets) - 1)


@kernel
def _draw(stages: int, wide: float, state: npt.NDArray[np.uint64]) -> tuple[int, int, int]:
    """The kinds of op of an exchange, as bits, and its stages: all, or some of both."""
    if random(state) < wide:
        return 7, 0, stages
    kinds, since = 1 + int(random(state) * 7), 0
    if random(state) < 0.5:
        since = int(random(state) * stages)
        return kinds, since, since + 1 + int(random(state) * (stages - since))
    return kinds, since, stages


@kernel
def exchange_kernel(  # noqa: PLR0917
    order: IntArray,  # (N,) packed F's, B's and W's, rank after rank; changed
    best: IntArray,  # (N,) out: the best order met, where it beats best_cost
    best_cost: float,
    offsets: IntArray,
    durations: FloatArray,
    owner: IntArray,
    into_f: FloatArray,
    into_b: FloatArray,
    m_b: FloatArray,
    m_w: FloatArray,
    limit: FloatArray,
    makespan: bool,
    hot: float,  # temperature of the first and of the last move, in units of cost
    cold: float,
    moves: int,
    wide: float,  # share of the moves that are made of all ops of two microbatches
    state: npt.NDArray[np.uint64],  # (1,) of the random numbers; changed
    stopped: npt.NDArray[np.bool_],  # (1,) turns true where another thread ends it all
) -> float:
    """Tries ``moves`` exchanges; returns the cost of ``best``."""
    stages, microbatches = owner.shape
    ranks, size = len(limit), len(order)
    start, end = np.empty(size), np.empty(size)
    peak, position = np.empty(ranks), np.empty(ranks, dtype=np.int64)
    f_end, b_end = np.empty(owner.shape), np.empty(owner.shape)
    place = np.empty((3, stages, microbatches), dtype=np.int64)
    for at in range(size):
        op = order[at]
        place[op & KIND_MASK, op >> STAGE_SHIFT & STAGE_MASK, op >> MICROBATCH_SHIFT] = at
    cooling = (cold / hot) ** (1.0 / max(moves, 1))
    temperature, current = hot, np.inf
    for move in range(-1, moves):
        if stopped[0]:
            break
        one = other = since = until = kinds = 0
        if move >= 0:
            temperature *= cooling
            one = int(random(state) * microbatches)
            other = int(random(state) * microbatches)
            if one == other:
                continue
            kinds, since, until = _draw(stages, wide, state)
            _exchange(order, place, one, other, kinds, since, until)
        runs = run_kernel(
            order, offsets[:-1], offsets[1:], durations, owner, into_f, into_b, m_b, m_w, None,
            start, end, peak, f_end, b_end, position,
        )  # fmt: skip
        cost, value = np.inf, np.inf
        if runs and (move < 0 or (peak <= limit).all()):
            cost, value = _cost(offsets, start, end, makespan)
        if move < 0 or value <= current - temperature * np.log(1.0 - random(state)):
            current = value
            if cost < best_cost:
                best_cost = cost
                best[:] = order
        else:
            _exchange(order, place, one, other, kinds, since, until)
    return best_cost
