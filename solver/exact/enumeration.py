"""All orders of a small problem, by dynamic programming over what is done.

A state is what a beginning of a schedule leaves for the rest: how many F's, B's and W's of each
class have run (:class:`.enumeration_kernel.Small`), when each rank is free and began, when the
inputs come that have been made and not yet used. Ops are added by their starts, so that each
schedule is met once; of two states with the same ops done, the one that is nowhere earlier is left
out, and every one whose bound is not below the cost of the best schedule known. What is left in the
end costs least; where nothing is, the best schedule known does.

It covers activation passing with any map of stages to ranks and with a copy of the weights each
way, also where a BW takes less than its B and W, or runs at once with an F.

*Positions.* Microbatches of a class are told apart by their turn alone, as in :mod:`.formulation`,
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

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.cost.overlap import overlap_saves
from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.model.ops import FloatArray, Op, OpKind, pack
from pipeloom.ir.model.placement import Passing, PlacementKind
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.schedule import Schedule

from ..core.bound import Bound
from ..core.incumbent import Incumbent, Pairs
from ..core.options import Order
from ..core.relaxations import offloadable, recomputable
from ..core.schedule_cost import within_memory
from ..core.tolerances import ROUNDING
from .enumeration_kernel import BASE, UNSTARTED, Moves, Small, States, expand

CELLS = 12  # (stage, microbatch) pairs of a problem at most
STATES = 1 << 18  # at most
TARGETS = np.linspace(1 / 16, 1.0, 16)  # between bound and best cost
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


@dataclass(frozen=True, slots=True)
class MicrobatchClass:
    """The microbatches that run ``stage`` on ``rank``; ``way``: which of the ways they go."""

    stage: int
    rank: int
    way: int
    microbatches: tuple[int, ...]


def classes_of(costs: Costs) -> list[MicrobatchClass]:
    """All classes, way by way, each from the first stage to the last."""
    ways: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for microbatch, column in enumerate(costs.owner.T.tolist()):
        ways[tuple(column)].append(microbatch)
    return [
        MicrobatchClass(stage, rank, way, tuple(own))
        for way, (column, own) in enumerate(ways.items())
        for stage, rank in enumerate(column)
    ]


class _Tables:
    """The kernel's tables of a problem."""

    def __init__(self, problem: Problem, classes: Sequence[MicrobatchClass]) -> None:
        costs = Costs.of(problem)
        self._problem, self._classes = problem, classes
        stages = [each.stage for each in classes]
        self._t: FloatArray = costs.durations[:4, stages]
        self._both = np.minimum(self._t[OpKind.B] + self._t[OpKind.W], self._t[OpKind.BW])
        self._m_b, self._m_w = costs.m_b[stages], costs.m_w[stages]
        self._limit = costs.limit * (1 + ROUNDING)
        self._fused = list(self._moves_of_two())

    def _moves_of_two(self) -> Iterator[tuple[int, int, int, float]]:
        """BW's and pairs that take less than their parts: classes of F, B and W, and the time."""
        t, time = self._t, self._problem.profile.pair_time
        saves = overlap_saves(self._problem)
        for b, back in enumerate(self._classes):
            if t[OpKind.BW, b] < t[OpKind.B, b] + t[OpKind.W, b]:
                yield -1, b, b, float(t[OpKind.BW, b])
            for f, forth in enumerate(self._classes):
                if saves and forth.rank == back.rank:
                    length = time(forth.stage, back.stage)
                    if length < t[OpKind.F, f] + self._both[b]:
                        yield f, b, b, length

    def moves(self) -> Moves:
        number = range(len(self._classes))
        alone = [
            (*(c if kind == part else -1 for part in range(3)), float(self._t[kind, c]))
            for c in number
            for kind in range(3)
        ]
        rows = [*self._fused, *alone]
        parts = np.array([row[:3] for row in rows], dtype=np.int64)
        rank = np.array([self._classes[max(row[:3])].rank for row in rows], dtype=np.int64)
        filler = np.array([self._fills(*row[:3]) for row in rows])
        return Moves(parts, rank, np.array([row[3] for row in rows]), filler)

    def _fills(self, f: int, b: int, w: int) -> bool:
        """Whether the move may be put into a gap."""
        rank = self._classes[max(f, b, w)].rank
        if sum(c >= 0 for c in (f, b, w)) > 1:
            return False
        if w >= 0:
            return True
        if any(self._classes[row[1]].rank == rank for row in self._fused):
            return False
        return bool(self._m_b[b] >= self._m_w[b]) if b >= 0 else self._fits_all(rank)

    def _fits_all(self, rank: int) -> bool:
        own = [c for c, each in enumerate(self._classes) if each.rank == rank]
        held = sum(float(self._m_b[c]) * len(self._classes[c].microbatches) for c in own)
        return held <= float(self._limit[rank])

    def small(self) -> Small:
        classes, costs = self._classes, Costs.of(self._problem)
        last = self._problem.stages - 1
        source = np.array(
            [
                [c - 1 if each.stage else -1 for c, each in enumerate(classes)],
                [c + 1 if each.stage < last else -1 for c, each in enumerate(classes)],
            ]
        )
        own = [each.stage for each in classes], [each.microbatches[0] for each in classes]
        t = self._t
        return Small(
            np.array([each.rank for each in classes], dtype=np.int64),
            np.array([len(each.microbatches) for each in classes], dtype=np.int64),
            source,
            np.array([costs.into_f[own], costs.into_b[own]]),
            np.array([t[OpKind.F], np.minimum(t[OpKind.B], t[OpKind.BW]), self._both]),
            self._savings(),
            np.ascontiguousarray(t[OpKind.W]),
            self._m_b,
            self._m_w,
            self._limit,
            self._problem.objective is Objective.PERIOD,
        )

    def _savings(self) -> FloatArray:
        saving = np.zeros((2, len(self._classes)))
        for f, b, _, length in self._fused:
            if f >= 0:
                saved = self._t[OpKind.F, f] + self._both[b] - length
                saving[0, f] = max(saving[0, f], saved)
                saving[1, b] = max(saving[1, b], saved)
        return saving


class Enumeration:
    """The states from which a problem's schedules that cost less than ``below`` go on."""

    def __init__(self, problem: Problem, below: float) -> None:
        self._problem, self._below, self._done = problem, below, 0
        self._classes = classes_of(Costs.of(problem))
        tables = _Tables(problem, self._classes)
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
        """The schedule of the least cost, and that cost; None where there is none."""
        last, states = self._states.layers[self._all], self._states
        costs: dict[float, int] = {}
        while last >= 0:
            if not states.dead[last]:
                begun = np.where(states.first[last] == UNSTARTED, states.clock[last], states.first[last])
                costs[float((states.clock[last] - begun).max())] = int(last)
            last = states.layer[last]
        if not costs:
            return None
        orders = _Orders(self._problem.ranks, self._classes)
        for step in reversed(list(self._way_back(costs[min(costs)]))):
            orders.add(self._moves.parts[step % BASE], step // BASE)
        pairs = tuple(map(tuple, orders.pairs))
        return min(costs), tuple(map(pack, orders.rows)), pairs if any(pairs) else ()

    def _way_back(self, state: int) -> Iterator[int]:
        while state > 0:
            yield int(self._states.step[state])
            state = int(self._states.parent[state])


def _no_states(small: Small, ops: int) -> States:
    classes, ranks, most = len(small.rank), len(small.limit), int(small.size.max())
    parent, step, chain, layer = (np.empty(STATES, dtype=np.int64) for _ in range(4))
    return States(
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


@dataclass
class _Orders:
    """Each rank's ops of real microbatches, built move by move; ``pairs`` are places of pairs.

    F's take the first microbatch that is there, or the one that they wait for. B's go in the order
    of F's on the last stage of their way, as all F's of so many have run then; a W's B is the
    earliest whose W has not run.
    """

    ranks: int
    classes: Sequence[MicrobatchClass]
    rows: list[list[Op]] = field(init=False)
    pairs: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.rows: list[list[Op]] = [[] for _ in range(self.ranks)]
        self.pairs: list[list[int]] = [[] for _ in range(self.ranks)]
        self._forwards: list[list[int]] = [[] for _ in self.classes]
        self._backwards = [0 for _ in self.classes]
        self._waiting: list[list[int]] = [[] for _ in self.classes]

    def add(self, parts: Sequence[int], wait: int) -> None:
        """``wait``: how many inputs later than its turn's an F waits for."""
        f, b, w = map(int, parts)
        row = self.rows[self.classes[max(f, b, w)].rank]
        if f >= 0 and b >= 0:
            self.pairs[self.classes[f].rank].append(len(row))
        if f >= 0:
            row.append(Op(OpKind.F, self.classes[f].stage, self._forward(f, wait)))
        if b >= 0:
            microbatch = self._backward(b)
            if w < 0:
                self._waiting[b].append(microbatch)
            kind = OpKind.B if w < 0 else OpKind.BW
            row.append(Op(kind, self.classes[b].stage, microbatch))
        elif w >= 0:
            row.append(Op(OpKind.W, self.classes[w].stage, self._waiting[w].pop(0)))

    def _forward(self, c: int, wait: int) -> int:
        came = self._forwards[c - 1] if self.classes[c].stage else self.classes[c].microbatches
        left = [j for j in came if j not in self._forwards[c]]
        last = came[len(self._forwards[c]) + wait]
        microbatch = last if wait and last in left else left[0]
        self._forwards[c].append(microbatch)
        return microbatch

    def _backward(self, c: int) -> int:
        way = [k for k, each in enumerate(self.classes) if each.way == self.classes[c].way]
        self._backwards[c] += 1
        return self._forwards[way[-1]][self._backwards[c] - 1]
