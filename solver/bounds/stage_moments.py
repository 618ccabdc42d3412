"""The variables and constraints of one stage in the MILP of :mod:`.milp_relaxation`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from operator import mul
from typing import Any

from ..core.linear_instance import LinearInstance
from .memory_time import MemoryTime, Ways


@dataclass(frozen=True, slots=True)
class WaitingCounts:
    """The numbers of microbatches between F and B at one moment, as variables of the MILP.

    ``full``: for each choice of :class:`.memory_time.Ways`, the number of microbatches that hold
    M_B. ``least``: for each choice except the first (to stay in memory), the number of microbatches
    that hold only what this choice keeps.
    """

    full: list[Any]
    least: list[Any]

    @property
    def number(self) -> Any:
        """An expression for the number of all microbatches between F and B."""
        return sum(self.full) + sum(self.least)


class StageMoments:
    """The moments and counts of stage ``i`` as variables, and the constraints on them.

    Their names in :mod:`.milp_relaxation` are: ``starts`` S, ``first_b`` y, ``last_f`` t,
    ``last_b`` V, ``ends`` e, ``chosen`` c, ``ahead.number`` n, ``pending.number`` a, ``weights`` q,
    ``early`` r, ``all_ahead`` z. ``chosen`` is a list with a count for each choice in
    :class:`.memory_time.Ways`, of which the first is to stay in memory. Times are in units of
    ``unit``, the ceiling, and sizes in units of the memory limit.
    """

    def __init__(
        self, solver: Any, linear: LinearInstance, i: int, unit: float, ways: Ways
    ) -> None:
        self.solver, self.m = solver, linear.microbatches
        times = (linear.f, linear.b, linear.w, linear.down, linear.up, linear.round_trip)
        self.f, self.b, self.w, self.down, self.up, self.round_trip = (
            float(time[i]) / unit for time in times
        )
        most = 2.0 * linear.microbatches * float(linear.m_b[i])  # a larger limit is as good as none
        limit = min(float(linear.limit[i]), most) or 1.0
        self.m_b, self.m_w = float(linear.m_b[i]) / limit, float(linear.m_w[i]) / limit
        self.again, self.wire = (
            [float(time) / unit for time in each] for each in (ways.again, ways.wire)
        )
        self.kept = [float(size) / limit for size in ways.kept]
        self.starts, self.first_b, self.last_f, self.last_b, self.ends = (
            solver.NumVar(0.0, solver.infinity(), "") for _ in range(5)
        )
        alone = len(self.kept) == 1
        self.chosen: list[Any] = [self.m] if alone else [self._count() for _ in self.kept]
        self.ahead, self.pending = self._held(), self._held()
        self.weights, self.early = self._count(), self._count()
        all_fit = int(linear.capacity[i]) >= self.m or not alone
        self.all_ahead = solver.IntVar(0, int(all_fit), "z")

    def _count(self) -> Any:
        return self.solver.IntVar(0, self.m, "")

    def _held(self) -> WaitingCounts:
        """Create the variables that count the microbatches between F and B at one moment.

        Also adds two kinds of constraints: there is at least one such microbatch, and the number of
        such microbatches with a choice is at most the number in ``chosen``.
        """
        waits = [self._count() for _ in self.kept[1:]]
        held = WaitingCounts([self._count() for _ in self.kept], waits)
        self.solver.Add(held.number >= 1)
        for full, least, chosen in zip(held.full, [0, *waits], self.chosen, strict=True):
            self.solver.Add(full + least <= chosen)
        return held

    def _memory(self, held: WaitingCounts) -> Any:
        return self.m_b * sum(held.full) + sum(map(mul, self.kept[1:], held.least))

    def keep_moments_apart(self) -> None:
        """Add the constraints *within a stage* of :mod:`.milp_relaxation`.

        They are about the stage's counts, and about the times between its moments.
        """
        m, f, b, w, add = self.m, self.f, self.b, self.w, self.solver.Add
        ahead, pending = self.ahead.number, self.pending.number
        done = m - pending  # B's before the last F
        again = sum(map(mul, self.again, self.chosen))
        before = sum(map(mul, self.again, self.ahead.full))  # R's before the first B
        later = sum(map(mul, self.again[1:], self.pending.least))  # R's after the last F
        add(sum(self.chosen) == m)
        add(self.first_b >= self.starts + f * ahead + before)
        add(self.first_b >= self.starts + self.round_trip)
        add(self.first_b >= self.starts + f + sum(map(mul, self.wire[1:], self.ahead.least)))
        add(self.last_f >= self.starts + f * (m - 1) + again - later)
        # big-M: no span exceeds the ceiling, 1 in this unit, so z = 1 lifts the constraint
        between = f * (m - 1 - ahead) + b * done + w * (done - self.weights)
        add(self.last_f >= self.first_b + between + again - before - later - 2 * self.all_ahead)
        add(ahead <= m - 1 + self.all_ahead)
        add(ahead >= m * self.all_ahead)
        add(pending >= m * self.all_ahead)
        add(done - self.weights >= 0)
        add(self.early <= pending - 1 + self.weights)
        add(self._memory(self.ahead) <= 1.0)
        add(sum(self.ahead.full) >= 1)
        add(self._memory(self.pending) + self.m_w * self.weights <= 1.0)
        add(self.m_b + self.m_w * (pending + self.weights - self.early - 1) <= 1.0)
        add(self.last_b >= self.last_f + f + b * pending + w * self.early + later)
        add(
            self.last_b
            >= self.first_b
            + f * (m - ahead)
            + b * m
            + w * (done - self.weights + self.early)
            + again
            - before
        )
        add(self.last_b >= self.last_f + self.round_trip + b)
        add(self.ends >= self.last_b + w * (pending + self.weights - self.early))
        add(self.ends >= self.starts + f + b + w + sum(map(mul, self.wire, self.chosen)))

    def fit(self, limits: Iterable[MemoryTime]) -> None:
        """Add the constraints ``limits`` by memory-time (memory held, integrated over time).

        They state that the memory-time that the stage's microbatches need is at most the memory
        limit times the span of the stage's rank.
        """
        late = self.pending.number + self.weights - self.early
        for limit in limits:
            needed = sum(map(mul, limit.needed, self.chosen)) + limit.lost
            if limit.until_last_b:
                early = limit.early * (self.m - late)
                self.solver.Add(self.last_b - self.starts >= needed + early)
            else:
                self.solver.Add(self.ends - self.starts >= needed + self.m * limit.early)

    def found(self) -> list[int]:
        """For each choice of :class:`.memory_time.Ways`, the number of microbatches with it.

        The numbers are those of the solution; the MILP must have been solved.
        """
        if len(self.chosen) == 1:
            return [self.m]
        return [round(number.solution_value()) for number in self.chosen]

    def pass_on_to(self, later: StageMoments) -> None:
        """Add the constraints *between stages* of :mod:`.milp_relaxation`.

        They are about the moments of this stage and those of the next stage, ``later``.
        """
        add = self.solver.Add
        add(later.starts >= self.starts + self.f + self.down)
        add(later.last_f >= self.last_f + self.f + self.down)
        add(self.first_b >= later.first_b + later.b + self.up)
        add(self.last_b >= later.last_b + self.up + self.b)
