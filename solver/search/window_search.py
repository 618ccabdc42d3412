"""Large neighborhood search with CP-SAT (:mod:`..exact.schedule_window`).

The ops that all ranks run in a *window* of time are reordered; all other ops stay. The model
demands a cost that is lower than the best by a *step*. After a success the step doubles. Otherwise
it is halved, and the next window contains more ops if the model was infeasible, and fewer if it was
not solved in time.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.cost.dependency_graph import ScheduleGraph
from pipeloom.ir.cost.overlap import overlap_saves
from pipeloom.ir.cost.simulator import timed
from pipeloom.ir.model.ops import KIND_MASK, IntArray, OpKind, split_backwards
from pipeloom.ir.model.problem import Objective
from pipeloom.ir.model.schedule import Schedule

from ..core.incumbent import Incumbent
from ..core.methods import Method
from ..core.options import MOST_SEEDS, Order
from ..core.relaxations import fusible, has_remat, recomputable
from ..core.stopping import OPS_A_SECOND
from ..core.streams import by_turns, number_of_ops, streams_of

if TYPE_CHECKING:
    from ..exact.schedule_window import Decided

# the step relative to the cost: its first value, which is also the minimum, and its maximum
STEP, LONGEST_STEP = 5e-4, 1e-2
# WINDOWS per round once less than the share LATE of time or work is left; before that, one
LATE, WINDOWS = 0.8, 6
# pairs of ops in the first window; number of pairs for which there must be enough time
PAIRS, ROOM = 4000.0, 8000.0
SHARE, SECONDS = 1 / 8, 0.6  # time for a window: a share of the time left, at most so many seconds
# seconds to build the model: per pair of ops in the window, per op of the problem
PAIR, OP = 1e-5, 1e-5
WIDER, NARROWER = 1.3, 0.7  # factors for the number of pairs in the next window
RECOMPUTED = 3  # factor for PAIR if stages may be recomputed
OPS = 10_000  # problems with more ops are not searched


class WindowSearch:
    """Large neighborhood search that reorders the ops in windows at random times.

    ``able``: whether enough time is left to build a model with :data:`ROOM` pairs of ops. ``free``:
    whether the model may also change which microbatches are recomputed.
    """

    def __init__(self, best: Incumbent, rng: np.random.Generator, *, free: bool = True) -> None:
        problem = best.problem
        self._best, self._rng = best, rng
        self._remat = has_remat(problem)
        self._free = free and bool(recomputable(problem).any())
        self._pairs, self._step = PAIRS, STEP
        self._ops = number_of_ops(problem)
        unknown = problem.profile.unlike or overlap_saves(problem)
        works = bool(Costs.of(problem).durations[:3].any())
        self._known = self._ops <= OPS and works and not unknown
        self._pair = PAIR * (RECOMPUTED if self._free else 1)
        self._order: Order = ()
        self._graph: ScheduleGraph | None = None

    @property
    def able(self) -> bool:
        return self._known and self._room() >= ROOM

    def _room(self) -> float:
        """Return the number of pairs of ops for which a model can be built in time.

        Building may take half of the time that a window gets. The result is negative if that is too
        short even to create the ops of the model.
        """
        seconds = self._best.budget(SHARE, SECONDS).seconds_left
        return (seconds / 2 - OP * self._ops) / self._pair

    def round(self, best: Incumbent) -> None:
        for _ in range(WINDOWS if best.share_left < LATE else 1):
            if best.over() or not self.able:
                break
            self._ask(best)

    def _ask(self, best: Incumbent) -> None:
        from ..exact.bisection import find_order
        from ..exact.model import PARAMETERS, OrderModel
        from ..exact.schedule_window import ScheduleWindow

        order, _, cost = best.found()
        if order is not self._order:
            self._order, self._graph = order, self._graph_of(order)
        if self._graph is None:
            return
        pairs = min(self._pairs, self._room())
        best.work.spend((max(0.0, pairs) * self._pair + self._ops * OP) * OPS_A_SECOND)
        first, stop = self._window(self._graph, pairs)
        if (first == stop).all():
            self._pairs = PAIRS
            return
        window = ScheduleWindow(self._graph, first, stop, self._decided, free=self._free)
        target = max(cost * (1 - self._step), best.bound.value)
        model = OrderModel(window.instance(target), 0.0, target, hint=window.hint)
        parameters = {"random_seed": int(self._rng.integers(MOST_SEEDS)), **PARAMETERS}
        search = find_order(best, model, best.budget(SHARE, SECONDS), parameters, Method.WINDOW)
        if best.cost < cost:
            self._step = min(2 * self._step, LONGEST_STEP)
            return
        self._step = max(self._step / 2, STEP)
        self._pairs *= WIDER if search.refuted else NARROWER

    @cached_property
    def _decided(self) -> Decided:
        """The restrictions on the order of ops that follow from the memory limits.

        They are those of :func:`..exact.instance.decided`, if the microbatches of each stream run
        on every stage in ascending order. The list is empty if the problem has recomputation or
        offload.
        """
        from ..exact.instance import decided

        problem = self._best.problem
        return [] if self._remat else [*decided(problem, streams_of(problem))]

    def _graph_of(self, order: Order) -> ScheduleGraph | None:
        """Return the dependency graph of the timed schedule with this order.

        Returns None if a microbatch is offloaded.
        """
        problem = self._best.problem
        if not self._remat:
            order = by_turns(problem, order)
        elif any(bool((row & KIND_MASK >= OpKind.O).any()) for row in order):
            return None
        elif not fusible(problem).any():
            order = tuple(map(split_backwards, order))
        return ScheduleGraph.of(timed(Schedule(problem, order)))

    def _window(self, graph: ScheduleGraph, pairs: float) -> tuple[IntArray, IntArray]:
        """Return a window around a random time with about ``pairs`` pairs of ops.

        The window is two arrays, (P,): the position of each rank's first op in the window, and the
        position of the rank's first op after the window; they are equal if no op of the rank is in
        the window. If the objective is the period, no rank's first op is in the window, because the
        rank's period is measured from the start of that op.
        """
        timing = graph.schedule.timing
        assert timing is not None
        starts = timing.start
        ends = max(row[-1] for row in starts if len(row))
        middle, low, high = self._rng.uniform(0.0, ends), 0.0, ends
        period = self._best.problem.objective is Objective.PERIOD
        least = np.array([min(len(row), int(period)) for row in starts])
        while True:
            width = (low + high) / 2
            first = np.array([row.searchsorted(middle - width) for row in starts])
            stop = np.array([row.searchsorted(middle + width, "right") for row in starts])
            first, stop = np.maximum(first, least), np.maximum(stop, least)
            if high - low <= 1e-3 * ends:
                return first, stop
            if ((stop - first) ** 2).sum() / 2 > pairs:
                high = width
            else:
                low = width
