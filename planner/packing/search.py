"""A packing and its schedules: constructed, improved by the planned step, and scheduled.

::

    an even and an uneven packing -> the order of ops of each -> by each order a local search on
    packings, and a schedule for a moment -> of the better one, a schedule -> once more by that

In the local search sequences and whole microbatches change places, and each packing is simulated by
the order of ops that is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from random import Random

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.cost.simulator import Simulator
from pipeloom.ir.model.ops import FloatArray, offsets_of
from pipeloom.ir.model.schedule import Schedule
from pipeloom.solver.core.options import Order, SolveOptions
from pipeloom.solver.core.schedule_cost import iteration_time
from pipeloom.solver.core.stopping import Budget
from pipeloom.solver.core.tolerances import ROUNDING

from ..solving.search import CachedSearch
from .constructors import constructed
from .costs import Microbatches, SequenceCosts

PATTERNS, SCHEDULES, AGAIN = 0.08, 0.6, 0.08
"""Shares of time or work: of the first orders, and as much each of local search by them and of the
schedules that it is judged by; of the schedules; of a last local search by these, and as much of
its schedules."""
EXCHANGED, MOVED = 0.25, 0.5
"""Shares of the moves that exchange two microbatches, and up to here move a sequence; the others
exchange two sequences."""
MEAN = 1e-3
"""Weight of the replicas' mean beside the slowest one."""
HEAT = 1e-3
"""Share of the cost by which a move may make it worse at first; at the end none."""


@dataclass(frozen=True)
class Found:
    """The microbatches of all replicas, one after the other, and a schedule of each replica."""

    packed: Microbatches
    schedules: list[Schedule]

    @property
    def orders(self) -> list[Order]:
        return [schedule.order for schedule in self.schedules]

    @property
    def cost(self) -> float:
        """Milliseconds of the slowest replica."""
        return max(map(iteration_time, self.schedules))


def choose(
    costs: SequenceCosts,
    replicas: int,
    most: float,
    search: CachedSearch,
    start: Order | None = None,
) -> Found:
    """The best packing found of at most ``most`` tokens per microbatch; ``start``: an order of ops
    to begin with. Raises InfeasibleError where nothing fits."""
    starts = constructed(costs, replicas, most)
    share = search.share(PATTERNS / len(starts))
    tracks = []
    for packed in starts:
        orders = scheduled(costs, packed, [start] * replicas, share).orders
        known = [cost_of(costs, each, orders) for each in starts]
        tracks.append(_track(costs, starts[int(np.argmin(known))], orders, most, share))
    best = min(tracks, key=lambda track: track.cost)
    found = scheduled(costs, best.packed, best.orders, search.share(SCHEDULES))
    again = _track(costs, found.packed, found.orders, most, search.share(AGAIN))
    return min(found, again, key=lambda each: each.cost)


def scheduled(
    costs: SequenceCosts, packed: Microbatches, orders: Sequence[Order | None], search: CachedSearch
) -> Found:
    """A schedule of each replica, from its order if there is one; they share time or work."""
    share = search.share(1 / len(orders))
    problems = map(costs.problem_of, by_replica(packed, costs.problem.microbatches))
    return Found(
        packed,
        [share.run(problem, start=order) for problem, order in zip(problems, orders, strict=True)],
    )


def by_replica(packed: Microbatches, each: int) -> Iterator[Microbatches]:
    """The microbatches of one replica after the other."""
    for first in range(0, len(packed), each):
        yield packed[first : first + each]


def _track(
    costs: SequenceCosts,
    packed: Microbatches,
    orders: Sequence[Order],
    most: float,
    search: CachedSearch,
) -> Found:
    """The local search by these orders from ``packed``, scheduled."""
    return scheduled(costs, improved(costs, packed, orders, most, search.options), orders, search)


class PackingCost:
    """The cost of each replica's microbatches in one order of ops per replica, with the delays that
    messages of the microbatches ``packed`` have."""

    def __init__(self, costs: SequenceCosts, packed: Microbatches, orders: Sequence[Order]) -> None:
        self._of, self._count = costs, costs.problem.microbatches
        self._tables = [Costs.of(costs.problem_of(p)) for p in by_replica(packed, self._count)]
        self._orders = [np.concatenate(order).astype(np.int64) for order in orders]
        self._offsets = list(map(offsets_of, orders))

    def __call__(self, r: int, sizes: FloatArray) -> float:
        """The cost of replica ``r``, infinite where memory does not hold it; ``sizes``: tokens of
        each microbatch and the sum of their squares, (R M, 2)."""
        of, (tokens, squares) = self._of, sizes[r * self._count :][: self._count].T
        times = of.linear[:, :, None] * tokens + of.square[:, :, None] * squares
        durations = np.concatenate([times, times[1:2] + times[2:]])
        m_b, m_w = of.held[:, :, None] * tokens
        table = replace(self._tables[r], durations=durations, m_b=m_b, m_w=m_w)
        simulator = Simulator(of.problem, self._offsets[r], table)
        cost = simulator.cost(self._orders[r])
        return cost if (simulator.peak <= table.limit * (1 + ROUNDING)).all() else inf


def cost_of(costs: SequenceCosts, packed: Microbatches, orders: Sequence[Order]) -> float:
    """The slowest replica's cost by these orders, one per replica."""
    cost, sizes = PackingCost(costs, packed, orders), costs.sizes_of(packed)
    return max(cost(r, sizes) for r in range(len(orders)))


def improved(
    costs: SequenceCosts,
    packed: Microbatches,
    orders: Sequence[Order],
    most: float,
    options: SolveOptions,
) -> Microbatches:
    """The best packing found within ``options`` from ``packed``, all replicas' microbatches one
    after the other, of at most ``most`` tokens each; ``orders``: one per replica."""
    random, budget, count = Random(options.seed), options.budget, costs.problem.microbatches
    cost, sizes = PackingCost(costs, packed, orders), costs.sizes_of(packed)
    ops, spans = 3.0 * costs.problem.stages * count, [cost(r, sizes) for r in range(len(orders))]
    now, worth = best, least = packed, _worth(spans)
    while len(packed) > 1 and not budget() and not options.should_stop():
        a, b = random.sample(range(len(now)), 2)
        budget.work.spend(ops)
        tried, changed = list(now), sizes.copy()
        tried[a], tried[b] = _moved(now[a], now[b], random)
        changed[[a, b]] = costs.sizes_of([tried[a], tried[b]])
        if changed[[a, b], 0].max() > most:
            continue
        found = list(spans)
        for r in {a // count, b // count}:
            found[r] = cost(r, changed)
        value, heat = _worth(found), HEAT * _left(budget)
        if value <= worth + least * heat * random.random():
            now, sizes, spans, worth = tried, changed, found, value
        if worth < least:
            best, least = now, worth
    return best


def _left(budget: Budget) -> float:
    """The share of the budget that is left."""
    limit = budget.work
    return budget.time.share_left if limit.ops == inf else limit.left / limit.ops


def _worth(spans: Sequence[float]) -> float:
    """The value that is minimized."""
    return max(spans) + MEAN * sum(spans) / len(spans)


def _moved(one: list[int], other: list[int], random: Random) -> tuple[list[int], list[int]]:
    """Two microbatches after a random move."""
    kind, i, k = random.random(), random.choice(one), random.choice(other)
    if kind < EXCHANGED:
        return other, one
    rest = [x for x in one if x != i]
    if kind < MOVED and rest:
        return rest, [*other, i]
    return [*rest, k], [*(x for x in other if x != k), i]
