"""Local search on a packing: sequences moved and exchanged between microbatches, each packing
simulated by an order of ops that is known.

The order is a pattern whose places a replica's microbatches take: two whole microbatches that are
exchanged are the third kind of move, so that the order of entry is part of the packing. What is
minimized is the slowest replica's cost, and where that stays the mean of all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from math import inf

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.model.ops import FloatArray, offsets_of
from pipeloom.ir.model.problem import Objective
from pipeloom.solver.core.kernels import seeded
from pipeloom.solver.core.options import Order
from pipeloom.solver.core.stopping import NEVER, Budget, StoppingCriterion
from pipeloom.solver.core.tolerances import ROUNDING

from .balance import Microbatches
from .kernel import Bins, Stages, Tables, fill, pack_kernel, span_of, worth_of
from .sequence_costs import SequenceCosts

PIECE = 1_000_000.0
"""Simulated ops between two looks at the clock, about 0.01 s."""


def improved(
    costs: SequenceCosts,
    microbatches: Microbatches,
    orders: Sequence[Order],
    most: float,
    *,
    seed: int,
    budget: Budget,
    should_stop: StoppingCriterion = NEVER,
) -> Microbatches:
    """The best packing found within ``budget`` from one of ``microbatches``, all replicas' one
    after the other, of at most ``most`` tokens each; ``orders``: one a replica."""
    if len(microbatches) < 2:
        return microbatches
    packed, state = _Packed(costs, microbatches, orders), seeded(np.random.default_rng(seed))
    bins, worth = packed.bins, np.full(2, worth_of(packed.spans()))
    best: Bins = tuple(map(np.copy, bins))  # type: ignore[assignment]
    left = _left(budget)
    while not budget() and not should_stop():
        ops = min(PIECE, budget.work.left)
        budget.work.spend(ops)
        hot, left = left, _left(budget)
        pack_kernel(
            costs.lengths, most, bins, best, worth, packed.stages, packed.tables, packed.owner,
            packed.limit, packed.orders, packed.makespan, hot, left, ops, state,
            budget.interrupt.flag,
        )  # fmt: skip
    members, counts, _, _, bin_of = best
    return [members[b, : counts[b]].tolist() for b in bin_of.tolist()]


def cost_of(costs: SequenceCosts, microbatches: Microbatches, orders: Sequence[Order]) -> float:
    """The slowest replica's cost by these orders; infinite where memory does not hold one."""
    return float(_Packed(costs, microbatches, orders).spans().max())


def by_replica(packed: Microbatches, each: int) -> Iterator[Microbatches]:
    """The microbatches of one replica after the other."""
    for first in range(0, len(packed), each):
        yield packed[first : first + each]


def _left(budget: Budget) -> float:
    """The share of the budget that is left."""
    work = budget.work.left / budget.work.ops if budget.work.ops < inf else 1.0
    return min(budget.time.share_left, work)


class _Packed:
    """The arrays of a packing that the kernel works on."""

    def __init__(self, costs: SequenceCosts, packed: Microbatches, orders: Sequence[Order]) -> None:
        table, self.stages = _stages(costs)
        problem, replicas = costs.problem, len(orders)
        self.owner, self.makespan = table.owner, problem.objective is Objective.MAKESPAN
        self.limit = table.limit * (1 + ROUNDING)
        offsets = [offsets_of(order) for order in orders]
        firsts = np.cumsum([0, *(int(each[-1]) for each in offsets[:-1])])
        flat = np.concatenate([row for order in orders for row in order])
        self.orders = flat.astype(np.int64), np.stack(offsets) + firsts[:, None]
        shape = replicas, *table.owner.shape
        durations = np.zeros((replicas, len(table.durations), *table.owner.shape))
        self.tables: Tables = durations, *np.zeros((4, *shape))
        self.bins = _bins(costs, packed)
        for j in range(len(packed)):
            fill(j, self.bins[2][j], self.bins[3][j], self.stages, self.tables)

    def spans(self) -> FloatArray:
        """Each replica's cost, (R,)."""
        times, ends = np.empty((2, len(self.orders[0]))), np.empty((2, *self.owner.shape))
        given = self.orders, self.tables, self.owner, self.limit, self.makespan, times, ends
        return np.array([span_of(r, *given) for r in range(len(self.orders[1]))])


def _bins(costs: SequenceCosts, packed: Microbatches) -> Bins:
    members = np.zeros((len(packed), len(costs.lengths)), dtype=np.int64)
    for j, each in enumerate(packed):
        members[j, : len(each)] = each
    counts = np.array([len(each) for each in packed])
    tokens = np.array([costs.lengths[each].sum() for each in packed])
    squares = np.array([(costs.lengths[each].astype(np.float64) ** 2).sum() for each in packed])
    return members, counts, tokens, squares, np.arange(len(packed))


@lru_cache(maxsize=2)
def _stages(costs: SequenceCosts) -> tuple[Costs, Stages]:
    """The tables of the reference microbatch, and what a token adds to one."""
    problem = costs.problem
    nothing = tuple(
        replace(s, activation_bytes=None if s.activation_bytes is None else 0.0)
        for s in problem.profile.stages
    )
    full = Costs.of(problem)
    bare = Costs.of(replace(problem, profile=replace(problem.profile, stages=nothing)))
    more_f, more_b = (full.into_f - bare.into_f) / costs.tokens, (full.into_b - bare.into_b)
    sizes = full.m_b / costs.tokens, full.m_w / costs.tokens
    delays = bare.into_f, bare.into_b, more_f, more_b / costs.tokens
    return full, (costs.linear, costs.square, *sizes, *delays)
