"""Every order of one rank's ops, where weights come to it at known times.

A microbatch has run so many of its F's and B's, one after the other, and the W's of some stages.
What is held follows from that, and of all ways to get there the earliest is best. B's and W's may
be one op where that takes less.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.model.ops import Op, OpKind
from pipeloom.ir.model.problem import Problem

from ..core.tolerances import ROUNDING

Place = tuple[int, int]
"""How many F's and B's of a microbatch have run; the stages of which W has, as bits."""
State = tuple[Place, ...]
"""The places of a rank's microbatches, ascending."""
Arrivals = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RankStep:
    """An op that takes a microbatch from one place to another."""

    kind: OpKind
    stage: int
    start: Place
    end: Place


Reached = dict[State, tuple[float, State, RankStep | None]]
"""By state: when it is there at the earliest, from which one, by which step."""


class RankOrders:
    """The orders of one rank of a problem with streamed weights."""

    def __init__(self, problem: Problem, rank: int) -> None:
        costs = Costs.of(problem)
        self._own = np.flatnonzero(problem.owner[0] == rank).tolist()
        self._t: list[list[float]] = costs.durations[:4].tolist()
        self._m_b, self._m_w = costs.m_b.tolist(), costs.m_w.tolist()
        self._limit, self._stages = float(costs.limit[rank]) * (1 + ROUNDING), problem.stages
        _, b, w, fused = self._t
        self._both = [min(x + y, z) for x, y, z in zip(b, w, fused, strict=True)]
        self._all: State = ((2 * self._stages, (1 << self._stages) - 1),) * len(self._own)
        self._ends: dict[Arrivals, float] = {}
        self._holds: dict[Place, float] = {}

    def rest(self, stage: int) -> float:
        """The least time that is left once the weights of ``stage`` have come: before that no more
        can run than the F's of the stages before it."""
        each = sum(self._t[OpKind.F][stage:]) + sum(self._both)
        return float(len(self._own) * each)

    def end(self, arrived: Arrivals, below: float) -> float:
        """The time at which the last op ends at the earliest; infinite where it is not ``below``,
        of which no call gives more than the one before."""
        if arrived not in self._ends:
            reached = self._reached(arrived, below).get(self._all)
            self._ends[arrived] = reached[0] if reached else inf
        return self._ends[arrived]

    def order(self, arrived: Arrivals) -> list[Op]:
        """The ops in the order that ends first."""
        reached, state = self._reached(arrived, inf), self._all
        steps = []
        while (found := reached[state])[2] is not None:
            steps.append(found[2])
            state = found[1]
        places = dict.fromkeys(self._own, (0, 0))
        ops = []
        for step in reversed(steps):
            microbatch = next(j for j, place in places.items() if place == step.start)
            places[microbatch] = step.end
            ops.append(Op(step.kind, step.stage, microbatch))
        return ops

    def _reached(self, arrived: Arrivals, below: float) -> Reached:
        """All states that leave time enough to end ``below``."""
        first: State = ((0, 0),) * len(self._own)
        reached: Reached = {first: (0.0, first, None)}
        layers: list[set[State]] = [set() for _ in range(3 * self._stages * len(self._own) + 3)]
        layers[0].add(first)
        for done, layer in enumerate(layers):
            for state in layer:
                for step, after, end in self._next(state, reached[state][0], arrived):
                    if end + self._left(after) >= below or end >= reached.get(after, (inf,))[0]:
                        continue
                    reached[after] = end, state, step
                    layers[done + 1 + (step.kind is OpKind.BW)].add(after)
        return reached

    def _next(
        self, state: State, clock: float, arrived: Arrivals
    ) -> Iterator[tuple[RankStep, State, float]]:
        for place in set(state):
            for step, start in self._steps(place, clock, arrived):
                at = state.index(place)
                others = *state[:at], *state[at + 1 :]
                if step.kind is OpKind.F and self._held((*others, step.end)) > self._limit:
                    continue
                end = start + self._t[step.kind][step.stage]
                yield step, tuple(sorted((*others, step.end))), end

    def _steps(
        self, place: Place, clock: float, arrived: Arrivals
    ) -> Iterator[tuple[RankStep, float]]:
        """The ops of a microbatch that may be next, and when they start."""
        (ran, written), stages = place, self._stages
        if ran < stages:
            yield RankStep(OpKind.F, ran, place, (ran + 1, written)), max(clock, arrived[ran])
        elif ran < 2 * stages:
            s = 2 * stages - 1 - ran
            yield RankStep(OpKind.B, s, place, (ran + 1, written)), clock
            if self._t[OpKind.BW][s] < self._t[OpKind.B][s] + self._t[OpKind.W][s]:
                yield RankStep(OpKind.BW, s, place, (ran + 1, written | 1 << s)), clock
        for s in range(max(0, 2 * stages - ran), stages):
            if not written >> s & 1:
                yield RankStep(OpKind.W, s, place, (ran, written | 1 << s)), clock

    def _held(self, state: State) -> float:
        return sum(map(self._holding, state))

    def _holding(self, place: Place) -> float:
        """The activations of a microbatch at this place."""
        if place not in self._holds:
            ran, written = place
            back = max(0, 2 * self._stages - ran)
            self._holds[place] = sum(self._m_b[: min(ran, back)]) + sum(
                self._m_w[s] for s in range(back, self._stages) if not written >> s & 1
            )
        return self._holds[place]

    def _left(self, state: State) -> float:
        """The time of the ops that are left, at the least."""
        left = 0.0
        for ran, written in state:
            back = min(self._stages, max(0, 2 * self._stages - ran))
            left += sum(self._t[OpKind.F][min(ran, self._stages) :]) + sum(self._both[:back])
            left += sum(
                self._t[OpKind.W][s] for s in range(back, self._stages) if not written >> s & 1
            )
        return left
