"""Problems without remat whose schedules are turned into schedules of a problem with remat.

*Remat* is recomputation, offload and fused backwards. A related problem without it may have whole
stages recomputed or offloaded (:mod:`.whole_stages`), or more memory, or neither; its schedules are
then made to fit (:mod:`.repair`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.cost.remat import OFFLOADED, RECOMPUTED, STAYS
from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.model.ops import Op, OpKind, pack
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule

from ..core.incumbent import Incumbent
from ..core.methods import Method
from ..core.options import Order
from ..core.progress import FALLBACK
from ..core.relaxations import plain, recomputable
from ..core.schedule_cost import within_memory
from ..search.list_search import ListTuner
from .fused_backward import fused_neighbours
from .repair import fitted, returned, roomier
from .whole_stages import recomputed, reductions

STARTS = 2  # maximum number of schedules that are annealed one after the other, at first


class Relation(NamedTuple):
    """A related problem, and how to turn its orders into orders of the original problem.

    ``problem``: the related problem. ``orders``: a function that makes any number of orders of the
    original problem from one of the related problem. ``method``: the label with which these are
    offered; None means the label of the order that they are made from.
    """

    problem: Problem
    orders: Callable[[Order], Iterable[Order]]
    method: Method | None


def without_remat(problem: Problem, every: bool) -> Iterator[Relation]:
    if not every:
        yield Relation(plain(problem), lambda rows: [rows], None)


def with_whole_stages(problem: Problem, every: bool) -> Iterator[Relation]:
    orders = partial(recomputed if every else fitted, problem)
    for reduced in reductions(problem, every) if problem.limited or every else ():
        yield Relation(reduced, orders, Method.WHOLE_STAGES)


def with_more_memory(problem: Problem, every: bool) -> Iterator[Relation]:
    for with_more in roomier(problem) if problem.limited and not every else ():
        yield Relation(with_more, partial(fitted, problem), Method.REPAIR)


class AnnealingStarts:
    """The best orders found so far, from which annealing starts.

    The first call of :meth:`best` returns at most :data:`STARTS` of them, each further call at most
    half as many as the one before, but at least one. ``every``: whether all recomputable stages
    must be recomputed; otherwise the search chooses.
    """

    def __init__(self, best: Incumbent, every: bool) -> None:
        self._best, self.every, self._number = best, every, STARTS
        self._known: list[tuple[float, Order]] = []

    def offer(self, rows: Order, method: str) -> None:
        """Keep an order if it fits in memory and is among the best, and offer it to the incumbent.

        The variant of the order in which adjacent B's and W's are fused is treated in the same way.
        ``method``: the label with which both are offered.
        """
        problem = self._best.problem
        for each in (rows, fused_neighbours(problem, rows)):
            timing = simulate(Schedule(problem, each))
            cost = timing.cost(problem.objective)
            if within_memory(problem, timing) and cost not in dict(self._known):
                self._known = sorted([*self._known, (cost, each)], key=lambda one: one[0])[:STARTS]
                self._best.offer(each, method, cost)

    def take(
        self,
        orders: Callable[[Order], Iterable[Order]],
        method: Method | None,
        _: Incumbent,
        small: Incumbent,
    ) -> None:
        """Offer the orders that can be made from the best schedule of a related problem.

        ``orders``, ``method``: as in :class:`Relation`. The unnamed argument, the incumbent of the
        original problem, is not used. ``small``: the incumbent of the related problem.
        """
        for rows in orders(small.found()[0]):
            self.offer(rows, method or small.method or FALLBACK)

    def best(self) -> list[tuple[float, Order]]:
        """Return the orders to anneal next, each in a pair (cost, order), the cheapest first.

        The incumbent's order is included if no other is kept or, from the second call on, if it is
        the cheapest.
        """
        order, _, cost = self._best.found()
        if not self._known or (self._number < STARTS and cost < self._known[0][0]):
            self._known = [(cost, order), *self._known]
        self._known = self._known[: self._number]
        self._number = max(1, self._number // 2)
        return list(self._known)


class RematLists:
    """A method that anneals the parameters of the list scheduler, which uses recomputation."""

    def __init__(self, tuner: ListTuner, starts: AnnealingStarts) -> None:
        self._tuner, self._starts, self.able = tuner, starts, True

    def round(self, best: Incumbent) -> None:
        for rows in self._tuner.orders(best, np.inf):
            self._starts.offer(rows, Method.LIST)


def one_at_a_time_with_remat(problem: Problem, every: bool) -> Order:
    """Return the order in which each microbatch ends before the next one begins.

    On each stage, a microbatch is recomputed or offloaded if it then holds less memory while it
    waits for its B; otherwise its activations stay. ``every``: recompute all recomputable stages in
    any case.
    """
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
