"""Local search on a packing: sequences moved and exchanged between microbatches, each packing
simulated by an order of ops that is known.

The order is a pattern whose places a replica's microbatches take: two whole microbatches that are
exchanged are the third kind of move, so that the order of entry is part of the packing. What is
minimized is the slowest replica's cost, and where that stays the mean of all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from random import Random

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.cost.simulator import Simulator
from pipeloom.ir.model.ops import FloatArray, offsets_of
from pipeloom.solver.core.options import Order
from pipeloom.solver.core.stopping import Budget
from pipeloom.solver.core.tolerances import ROUNDING

from .balance import Microbatches
from .sequence_costs import SequenceCosts

MEAN = 1e-3
"""Weight of the replicas' mean beside the slowest one."""
HEAT = 1e-3
"""Share of the cost by which a move may make it worse at first; at the end none."""


def improved(
    costs: SequenceCosts,
    microbatches: Microbatches,
    orders: Sequence[Order],
    most: float,
    *,
    seed: int,
    budget: Budget,
) -> Microbatches:
    """The best packing found within ``budget`` from one of ``microbatches``, all replicas' one
    after the other, of at most ``most`` tokens each; ``orders``: one a replica."""
    state, random = _State(costs, microbatches, orders, most), Random(seed)
    best, found = state.worth, list(state.packed)
    now = best
    while len(found) > 1 and not budget():
        budget.work.spend(state.ops)
        if not state.change(_move(state.packed, random)):
            continue
        if state.worth < best:
            best, found = state.worth, list(state.packed)
        if state.worth <= now + HEAT * best * _left(budget) * random.random():
            now = state.worth
        else:
            state.undo()
    return found


def cost_of(costs: SequenceCosts, microbatches: Microbatches, orders: Sequence[Order]) -> float:
    """The slowest replica's cost by these orders; infinite where memory does not hold one."""
    return max(_State(costs, microbatches, orders, inf).spans)


def _left(budget: Budget) -> float:
    """The share of the budget that is left."""
    work = budget.work.left / budget.work.ops if budget.work.ops < inf else 1.0
    return min(budget.time.share_left, work)


def _move(packed: Microbatches, random: Random) -> dict[int, list[int]]:
    """A change of two microbatches: one sequence moved, two exchanged, or all of them."""
    a, b = random.sample(range(len(packed)), 2)
    kind, first, second = random.random(), packed[a], packed[b]
    if kind < 0.25:
        return {a: second, b: first}
    i = random.randrange(len(first))
    rest = first[:i] + first[i + 1 :]
    if kind < 0.5 and rest:
        return {a: rest, b: [*second, first[i]]}
    k = random.randrange(len(second))
    return {a: [*rest, second[k]], b: [*second[:k], *second[k + 1 :], first[i]]}


class _State:
    """A packing under change, with what each replica costs."""

    def __init__(
        self, costs: SequenceCosts, packed: Microbatches, orders: Sequence[Order], most: float
    ) -> None:
        self.packed, self._most = list(packed), most
        self._lengths = costs.lengths.tolist()
        self._each = costs.problem.microbatches
        columns = _Columns.of(costs)
        self._replicas = [
            _Replica(costs, columns, part, order)
            for part, order in zip(by_replica(packed, self._each), orders, strict=True)
        ]
        self.spans = [replica.cost() for replica in self._replicas]
        self.ops = self._replicas[0].ops
        self._before: tuple[dict[int, list[int]], list[float]] = {}, self.spans

    @property
    def worth(self) -> float:
        """The value that is minimized."""
        return max(self.spans) + MEAN * sum(self.spans) / len(self.spans)

    def change(self, new: Mapping[int, list[int]]) -> bool:
        """Lets microbatches have these sequences; False where the tokens are too many."""
        if any(sum(self._lengths[i] for i in each) > self._most for each in new.values()):
            return False
        self._before = {j: self.packed[j] for j in new}, list(self.spans)
        for r in self._put(new):
            self.spans[r] = self._replicas[r].cost()
        return True

    def undo(self) -> None:
        """Takes the last change back."""
        old, self.spans = self._before
        self._put(old)

    def _put(self, new: Mapping[int, list[int]]) -> set[int]:
        for j, sequences in new.items():
            self.packed[j] = sequences
            self._replicas[j // self._each].put(j % self._each, sequences)
        return {j // self._each for j in new}


def by_replica(packed: Microbatches, each: int) -> Iterator[Microbatches]:
    """The microbatches of one replica after the other."""
    for first in range(0, len(packed), each):
        yield packed[first : first + each]


@dataclass(frozen=True, slots=True, eq=False)
class _Columns:
    """``times``: (4, S, n), what each sequence adds to F, B, W and BW. ``share``: (n,), of the
    reference microbatch's tokens; ``table``: with that in place of each. ``empty``, ``full``:
    delays (S, M) into F's and B's of microbatches without tokens and with as many as that."""

    times: FloatArray
    share: FloatArray
    table: Costs
    empty: tuple[FloatArray, FloatArray]
    full: tuple[FloatArray, FloatArray]

    @classmethod
    @lru_cache(maxsize=2)
    def of(cls, costs: SequenceCosts) -> _Columns:
        problem, times = costs.problem, costs.times
        stages = problem.profile.stages
        nothing = tuple(
            replace(s, activation_bytes=None if s.activation_bytes is None else 0.0) for s in stages
        )
        table = Costs.of(problem)
        bare = Costs.of(replace(problem, profile=replace(problem.profile, stages=nothing)))
        return cls(
            np.concatenate([times, (times[1] + times[2])[None]]),
            costs.lengths / costs.tokens,
            table,
            (bare.into_f, bare.into_b),
            (table.into_f, table.into_b),
        )


class _Replica:
    """One replica's tables, simulated by its order."""

    def __init__(
        self, costs: SequenceCosts, columns: _Columns, packed: Microbatches, order: Order
    ) -> None:
        problem, number = costs.problem, costs.problem.microbatches
        table = columns.table
        self._columns, self._m_b, self._m_w = columns, table.m_b, table.m_w
        rows = (table.durations, table.again, table.m_b, table.m_w, table.kept)
        wide = (np.repeat(row[..., None], number, axis=-1) for row in rows)
        durations, again, m_b, m_w, kept = wide
        self._costs = replace(
            table,
            durations=durations,
            again=again,
            m_b=m_b,
            m_w=m_w,
            kept=kept,
            into_f=table.into_f.copy(),
            into_b=table.into_b.copy(),
        )
        self._order, offsets = np.concatenate(order), offsets_of(order)
        self._simulator = Simulator(problem, offsets, self._costs)
        self._limit = table.limit * (1 + ROUNDING) if problem.limited else None
        self.ops = int(offsets[-1])
        for j, sequences in enumerate(packed):
            self.put(j, sequences)

    def put(self, j: int, sequences: Sequence[int]) -> None:
        """Lets microbatch ``j`` have these sequences."""
        of, table = self._columns, self._costs
        share = of.share[sequences].sum()
        table.durations[:4, :, j] = of.times[:, :, sequences].sum(axis=2)
        table.m_b[:, j], table.m_w[:, j] = self._m_b * share, self._m_w * share
        for into, empty, full in zip((table.into_f, table.into_b), of.empty, of.full, strict=True):
            into[:, j] = empty[:, j] + (full[:, j] - empty[:, j]) * share

    def cost(self) -> float:
        """By the objective; infinite where memory does not hold it."""
        found = self._simulator.cost(self._order)
        if self._limit is not None and (self._simulator.peak > self._limit).any():
            return inf
        return found
