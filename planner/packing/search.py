"""The search for a packing of sequences into microbatches, and for a schedule of each replica's
microbatches.

::

    a balanced and a sorted packing -> an order of ops for each
      -> for each order: local search over packings, then a short search for a schedule
      -> for the better result: a longer search for a schedule
      -> local search and schedule once more with its order

The local search moves a sequence to another microbatch, or exchanges two sequences or two whole
microbatches. It simulates each packing with a fixed order of ops.
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

from ..solving.search import Search
from .constructors import constructed
from .costs import Microbatches, SequenceCosts

PATTERNS, SCHEDULES, AGAIN = 0.08, 0.6, 0.08
"""Shares of the time or work, which sum to 1 with ``PATTERNS`` counted three times and ``AGAIN``
twice.

``PATTERNS``: the share of each of three phases: the first orders of ops, the local searches with
them, and the short searches for schedules. ``SCHEDULES``: the share of the longer search.
``AGAIN``: the share of each of the last two phases: a local search, and a search for its schedules.
"""
EXCHANGED, MOVED = 0.25, 0.5
"""Thresholds for a uniform random number: below ``EXCHANGED`` a move exchanges two microbatches,
else below ``MOVED`` it moves a sequence, else it exchanges two sequences."""
MEAN = 1e-3
"""Weight of the mean of the replicas' costs in the local search, relative to the cost of the
slowest replica."""
HEAT = 1e-3
"""Initial temperature of simulated annealing, as a share of the best cost; it decreases to 0."""


@dataclass(frozen=True)
class Found:
    """A packing and its schedules.

    ``packed``: the microbatches of all replicas, one replica after the other. ``schedules``: one
    per replica.
    """

    packed: Microbatches
    schedules: list[Schedule]

    @property
    def orders(self) -> list[Order]:
        return [schedule.order for schedule in self.schedules]

    @property
    def cost(self) -> float:
        """Cost of the slowest replica, in milliseconds."""
        return max(map(iteration_time, self.schedules))


def choose(
    costs: SequenceCosts,
    replicas: int,
    most: float,
    search: Search,
    start: Order | None = None,
) -> Found:
    """Return the best packing found with at most ``most`` tokens per microbatch, and its schedules.

    ``start``: the initial order of ops. Raises InfeasibleError if nothing fits.
    """
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
    costs: SequenceCosts, packed: Microbatches, orders: Sequence[Order | None], search: Search
) -> Found:
    """Search for a schedule for each replica of the packing ``packed``, and return them with the
    packing.

    ``orders``: the initial order of ops of each replica, or None. The replicas get equal shares of
    the time or work.
    """
    share = search.share(1 / len(orders))
    problems = map(costs.problem_of, by_replica(packed, costs.problem.microbatches))
    return Found(
        packed,
        [share.run(problem, start=order) for problem, order in zip(problems, orders, strict=True)],
    )


def by_replica(packed: Microbatches, each: int) -> Iterator[Microbatches]:
    """Yield the microbatches of each replica. ``each``: number of microbatches per replica."""
    for first in range(0, len(packed), each):
        yield packed[first : first + each]


def _track(
    costs: SequenceCosts,
    packed: Microbatches,
    orders: Sequence[Order],
    most: float,
    search: Search,
) -> Found:
    """Run a local search that starts from ``packed``, with the fixed order of ops of each replica
    in ``orders``, then search for schedules. Returns the packing found, with its schedules."""
    return scheduled(costs, improved(costs, packed, orders, most, search.options), orders, search)


class PackingCost:
    """A function that returns the cost of a replica's microbatches with a fixed order of ops.

    The delays of messages are always those of the microbatches ``packed``. ``orders``: one per
    replica.
    """

    def __init__(self, costs: SequenceCosts, packed: Microbatches, orders: Sequence[Order]) -> None:
        self._of, self._count = costs, costs.problem.microbatches
        self._tables = [Costs.of(costs.problem_of(p)) for p in by_replica(packed, self._count)]
        self._orders = [np.concatenate(order).astype(np.int64) for order in orders]
        self._offsets = list(map(offsets_of, orders))

    def __call__(self, r: int, sizes: FloatArray) -> float:
        """Return the cost of replica ``r`` in milliseconds; infinite if it exceeds the memory
        limit.

        ``sizes``: tokens and sum of squared lengths of each microbatch of all R replicas, (R M, 2).
        """
        of, (tokens, squares) = self._of, sizes[r * self._count :][: self._count].T
        times = of.linear[:, :, None] * tokens + of.square[:, :, None] * squares
        durations = np.concatenate([times, times[1:2] + times[2:]])
        m_b, m_w = of.held[:, :, None] * tokens
        table = replace(self._tables[r], durations=durations, m_b=m_b, m_w=m_w)
        simulator = Simulator(of.problem, self._offsets[r], table)
        cost = simulator.cost(self._orders[r])
        return cost if (simulator.peak <= table.limit * (1 + ROUNDING)).all() else inf


def cost_of(costs: SequenceCosts, packed: Microbatches, orders: Sequence[Order]) -> float:
    """Return the cost of the slowest replica, in milliseconds. ``orders``: the order of ops of each
    replica."""
    cost, sizes = PackingCost(costs, packed, orders), costs.sizes_of(packed)
    return max(cost(r, sizes) for r in range(len(orders)))


def improved(
    costs: SequenceCosts,
    packed: Microbatches,
    orders: Sequence[Order],
    most: float,
    options: SolveOptions,
) -> Microbatches:
    """Return the best packing found by local search from ``packed`` within the time or work of
    ``options``.

    ``packed``: the microbatches of all replicas, one replica after the other. ``orders``: an order
    of ops per replica. ``most``: maximum tokens of a microbatch.
    """
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
    """Return the remaining share of the budget, from 1 to 0."""
    limit = budget.work
    return budget.time.share_left if limit.ops == inf else limit.left / limit.ops


def _worth(spans: Sequence[float]) -> float:
    """Return the objective of the local search, in milliseconds. ``spans``: the cost of each
    replica."""
    return max(spans) + MEAN * sum(spans) / len(spans)


def _moved(one: list[int], other: list[int], random: Random) -> tuple[list[int], list[int]]:
    """Return the two microbatches after a random change: they are exchanged, one sequence moves
    from ``one`` to ``other``, or a sequence of each is exchanged."""
    kind, i, k = random.random(), random.choice(one), random.choice(other)
    if kind < EXCHANGED:
        return other, one
    rest = [x for x in one if x != i]
    if kind < MOVED and rest:
        return rest, [*other, i]
    return [*rest, k], [*(x for x in other if x != k), i]
