"""All orders of a small problem, by dynamic programming over what is done.

A state is what a beginning of a schedule leaves for the rest: how many F's, B's and W's of each
class have run (:class:`.kernel.Small`), when each rank is free and began, when the
inputs come that have been made and not yet used. Ops are added by their starts, so that each
schedule is met once; of two states with the same ops done, the one that is nowhere earlier is left
out, and every one whose bound is not below the cost of the best schedule known. What is left in the
end costs least; where nothing is, the best schedule known does.

It covers activation passing with any map of stages to ranks and with a copy of the weights each
way, also where a BW takes less than its B and W, or runs at once with an F.

*Positions.* Microbatches of a class are told apart by their turn alone, as in :mod:`..formulation`,
whose proof holds for each way by itself; a BW's W is its own, and the W's of B's that ran alone
follow these in any order.

*Later starts.* Where one state stands for another, an op may start later than its order says, at
the latest start so far; timed anew it comes no later, so that no cost is missed and none is too
low. For the period that must not move a rank's first start. So until all ranks have begun, states
are the same only where they are equal, no op starts later than its order says, and an F may also
wait for a later input than its turn's, as if it were of that microbatch. Nothing but F's runs until
then: a B comes after its microbatch's F's on all ranks.

*Gaps.* Where a W waits on any rank, none of the ops left begins after it could have ended: in a
schedule in which one does, the W may be moved into that gap. So for a B that gives memory back, and
for an F on a rank whose limit is out of reach, on ranks that run neither BW's nor pairs.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.model.ops import pack
from pipeloom.ir.model.placement import Passing, PlacementKind
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule

from ...core.bound import Bound
from ...core.incumbent import Incumbent, Pairs
from ...core.options import Order
from ...core.relaxations import offloadable, recomputable
from ...core.schedule_cost import within_memory
from ...core.tolerances import ROUNDING
from .kernel import BASE, UNSTARTED, Beginnings, Small, expand
from .naming import Orders
from .tables import Tables, classes_of

CELLS = 12  # (stage, microbatch) pairs of a problem at most
STATES = 1 << 18  # at most
TARGETS = tuple(n / 16 for n in range(1, 17))  # between bound and best cost
STATE_OPS = 100.0  # simulated ops that a state takes as long as
WORDS = "all orders were searched"


def enumerable(problem: Problem) -> bool:
    """Whether the problem is small, and of a kind that is covered."""
    placement = problem.placement
    both_ways = placement.kind is PlacementKind.BIDIRECTIONAL
    covered = placement.passing is Passing.ACTIVATIONS or both_ways
    few = problem.stages * problem.microbatches <= CELLS
    return few and covered and not (recomputable(problem) | offloadable(problem)).any()


def enumerate_orders(best: Incumbent) -> None:
    """Finds and proves the optimum, where the problem is :func:`enumerable`.

    Targets climb from the bound to the best cost: where no schedule costs less than one, few states
    are met. It ends with a bound where time or work is up, or there are too many states.
    """
    if best.over() or not enumerable(best.problem):
        return
    for share in TARGETS:
        low, high = best.bound.value, best.cost * (1 - ROUNDING)
        below = low + share * (high - low) if high < np.inf else np.inf
        search = Enumeration(best.problem, below)
        while not search.ended:
            best.work.spend(STATE_OPS * search.advance())
            if best.over() or search.overflowed:
                return
        found = search.found()
        best.raise_bound(Bound(below if found is None else found[0], "enumeration", WORDS))
        if found is not None:
            _offer(best, *found[1:])
        if best.over() or found is not None:
            return


def _offer(best: Incumbent, rows: Order, pairs: Pairs) -> None:
    timing = simulate(Schedule(best.problem, rows, pairs=pairs))
    if within_memory(best.problem, timing):
        best.offer(rows, "enumeration", timing.cost(best.problem.objective), pairs)


class Enumeration:
    """The states from which a problem's schedules that cost less than ``below`` go on."""

    def __init__(self, problem: Problem, below: float) -> None:
        self._problem, self._below, self._done = problem, below, 0
        self._classes = classes_of(Costs.of(problem))
        tables = Tables(problem, self._classes)
        self._small, self._moves = tables.small(), tables.moves()
        self._all = 3 * problem.stages * problem.microbatches
        self._states = _no_states(self._small, self._all)
        for column in (self._states.counts, self._states.clock, self._states.came):
            column[0] = 0
        self._states.first[0] = UNSTARTED if self._small.period else 0.0
        self._states.latest[0] = self._states.dead[0] = self._states.layers[0] = 0
        self._states.layer[0], self._states.filled[0] = -1, 1

    @property
    def ended(self) -> bool:
        return self._done == self._all

    @property
    def overflowed(self) -> bool:
        """Whether some states found no room, so that nothing is proven."""
        return bool(self._states.filled[1] > 0)

    def advance(self) -> int:
        """Goes on from all states with as many ops done; returns how many there were."""
        number = expand(self._small, self._moves, self._states, self._done, self._below)
        self._done += 1
        return int(number)

    def found(self) -> tuple[float, Order, Pairs] | None:
        """The least cost and the schedule that has it; None where there is none."""
        complete = {self._cost(state): state for state in self._complete()}
        if not complete:
            return None
        orders = Orders(self._problem.ranks, self._classes)
        for step in reversed(list(self._way_back(complete[min(complete)]))):
            orders.add(self._moves.parts[step % BASE].tolist(), step // BASE)
        pairs = tuple(map(tuple, orders.pairs))
        return min(complete), tuple(map(pack, orders.rows)), pairs if any(pairs) else ()

    def _complete(self) -> Iterator[int]:
        """The states with all ops done."""
        state = int(self._states.layers[self._all])
        while state >= 0:
            if not self._states.dead[state]:
                yield state
            state = int(self._states.layer[state])

    def _cost(self, state: int) -> float:
        first, clock = self._states.first[state], self._states.clock[state]
        return float((clock - np.where(first == UNSTARTED, clock, first)).max())

    def _way_back(self, state: int) -> Iterator[int]:
        while state > 0:
            yield int(self._states.step[state])
            state = int(self._states.parent[state])


def _no_states(small: Small, ops: int) -> Beginnings:
    classes, ranks, most = len(small.rank), len(small.limit), int(small.size.max())
    parent, step, chain, layer = (np.empty(STATES, dtype=np.int64) for _ in range(4))
    return Beginnings(
        counts=np.empty((STATES, 3, classes), dtype=np.int8),
        clock=np.empty((STATES, ranks)),
        first=np.empty((STATES, ranks)),
        came=np.empty((STATES, 2, classes, most)),
        latest=np.empty(STATES),
        parent=parent,
        step=step,
        dead=np.empty(STATES, dtype=np.bool_),
        chain=chain,
        heads=np.full(STATES // 4, -1, dtype=np.int64),
        layer=layer,
        layers=np.full(ops + 1, -1, dtype=np.int64),
        filled=np.zeros(2, dtype=np.int64),
    )
