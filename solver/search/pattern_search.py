"""Schedules of unlike microbatches from patterns.

A *pattern* is an order of ops whose microbatches are placeholders. Every microbatch may take any
placeholder, but the same one on all ranks; :mod:`..construct.entry_orders` proposes assignments.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from pipeloom.ir.cost.simulator import Simulator
from pipeloom.ir.model.ops import MICROBATCH_SHIFT, IntArray, offsets_of
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import StageProfile

from ..bounds import lower_bounds
from ..bounds.feasibility import is_feasible
from ..construct.entry_orders import entry_orders
from ..core.incumbent import Incumbent
from ..core.methods import Method
from ..core.options import Order
from ..core.tolerances import ROUNDING
from ..core.unlike import typical
from ..core.worker_threads import Worker
from .related import ENDLESS, SmallSearch

NEAR = 1.1  # patterns that cost at most this multiple of the best one are filled with microbatches


def relabelled(rows: Order, entry: IntArray) -> Order:
    """Return the order ``rows`` with microbatch ``entry[k]`` in place of each microbatch k.

    ``rows``: one array of packed ops per rank. ``entry``: a permutation of the microbatches, (M,).
    """
    return tuple(
        row & ((1 << MICROBATCH_SHIFT) - 1) | entry[row >> MICROBATCH_SHIFT] << MICROBATCH_SHIFT
        for row in rows
    )


def offer_filled(best: Incumbent, rows: Order, method: str) -> None:
    """Offer orders to ``best`` that result from the pattern ``rows``.

    Its placeholders are replaced by microbatches, once for each assignment of :func:`entry_orders`.
    A result is offered only if it costs less than the best schedule and fits in memory. ``method``:
    the label with which results are offered.
    """
    problem, offsets = best.problem, offsets_of(rows)
    simulator = Simulator(problem, offsets)
    limit = np.array(problem.memory_limit) * (1 + ROUNDING)
    for entry in entry_orders(problem):
        filled = relabelled(rows, entry)
        best.work.spend(int(offsets[-1]))
        cost = simulator.cost(np.concatenate(filled))
        if cost < best.cost and (simulator.peak <= limit).all():
            best.offer(filled, method, cost)


class PatternSearch:
    """A search for schedules of the mean microbatch, which then serve as patterns.

    The real microbatches replace the mean ones of a pattern. ``search``: the worker that searches.
    ``largest``: whether the mean microbatch needs on each stage the maximum memory of the real
    ones, instead of the mean, so that every microbatch fits into every placeholder. If a microbatch
    with that much memory does not fit on the ranks, the mean is used anyway.
    """

    def __init__(self, best: Incumbent, search: Worker, *, largest: bool) -> None:
        problem = typical(best.problem)
        if largest and is_feasible(most := typical(_with_largest_memory(best.problem))):
            problem = most
        self._small = _Patterns(problem, next(lower_bounds(problem)), ENDLESS)
        self._search = SmallSearch(best, self._small, search)

    @property
    def able(self) -> bool:
        return self._search.able

    def round(self, best: Incumbent) -> None:
        self._search.go_on(best)
        for rows in self._small.taken():
            if best.over():
                return
            offer_filled(best, rows, Method.PATTERN)


class _Patterns(Incumbent):
    """An incumbent that keeps its best order and all others within :data:`NEAR` times its cost.

    ``kept``: the pairs (cost, order) of the orders offered since the last call of :meth:`taken`.
    """

    kept: tuple[tuple[float, Order], ...] = ()

    def offer(
        self,
        order: Order,
        method: str,
        cost: float | None = None,
        pairs: tuple[tuple[int, ...], ...] = (),
    ) -> bool:
        cost = self._cost(order, pairs) if cost is None else cost
        if cost <= NEAR * self.cost and not any(pairs):
            self.kept = (*self.kept, (cost, tuple(map(np.copy, order))))
        return super().offer(order, method, cost, pairs)

    def taken(self) -> Iterator[Order]:
        """Yield the orders kept since the last call, the cheapest first.

        Orders that cost more than :data:`NEAR` times the present best one are left out. If several
        orders have equal costs, only one of them is yielded.
        """
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
