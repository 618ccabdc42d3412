"""W's put in another order so that stages whose gradients are averaged over replicas end early.

The search for an order knows nothing of averaging: its kernels and bounds are about ops alone. With
one stage a rank nothing is lost by that, but for which rank ends last: the stage's last W is the
rank's last op. With several, a stage whose last W comes early is averaged while the others compute.
So the order that was found is changed once more here, one W at a time, as long as the step,
averaging included (:meth:`~pipeloom.ir.model.schedule.Timing.step`), gets shorter, or the ops alone
do, or a rank.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from pipeloom.ir.cost.gradient_averaging import averages
from pipeloom.ir.cost.remat import pulled
from pipeloom.ir.cost.simulator import Simulator, timed
from pipeloom.ir.model.ops import KIND_MASK, STAGE_MASK, STAGE_SHIFT, IntArray, OpKind, offsets_of
from pipeloom.ir.model.placement import Passing
from pipeloom.ir.model.schedule import Schedule, Timing

from ..core.schedule_cost import objective_cost, status_under
from ..core.tolerances import ROUNDING

MOST_OPS = 5_000_000  # that are simulated at most


def average_early(schedule: Schedule) -> Schedule:
    """``schedule``, or one of the same problem with a shorter step, within the same memory limit.

    Its report stays about the ops alone: where these take longer now, the bound is as it was and
    the gap is larger.
    """
    problem = schedule.problem
    plain = problem.placement.passing is Passing.ACTIVATIONS and not any(schedule.pairs)
    if problem.profile.data_parallel is None or not plain or pulled(schedule.order):
        return schedule
    search = EarlyAveraging(schedule)
    search.run()
    return search.schedule()


class EarlyAveraging:
    """A descent over W's: the first move that helps is taken."""

    def __init__(self, schedule: Schedule) -> None:
        self._given = schedule
        self._offsets = offsets_of(schedule.order)
        self._simulator = Simulator(schedule.problem, self._offsets)
        limit = np.array(schedule.problem.memory_limit)
        self._limit = limit * (1 + ROUNDING)
        self._rows = [row.copy() for row in schedule.order]
        self._step = self._cost()
        self._left = MOST_OPS

    def run(self) -> None:
        while self._left > 0 and any(map(self._improve, range(len(self._rows)))):
            pass

    def schedule(self) -> Schedule:
        """The schedule, timed, with a report that still holds."""
        report = self._given.report
        same = all(map(np.array_equal, self._rows, self._given.order))
        if same or report is None:
            return self._given
        found = timed(replace(self._given, order=tuple(self._rows), timing=None))
        status = status_under(report.lower_bound or 0.0, objective_cost(found))
        return replace(found, report=replace(report, status=status))

    def _improve(self, rank: int) -> bool:
        row = self._rows[rank]
        for moved in _moves(row):
            self._rows[rank] = moved
            cost = self._cost()
            if _less(cost, self._step):
                self._step = cost
                return True
            self._rows[rank] = row
            self._left -= int(self._offsets[-1])
            if self._left <= 0:
                break
        return False

    def _cost(self) -> tuple[float, float, float]:
        """The step, the cost of the ops alone, and the sum of spans; infinite for invalid rows."""
        simulator, bounds = self._simulator, self._offsets[1:-1]
        if not simulator.run(np.concatenate(self._rows)) or (simulator.peak > self._limit).any():
            return (float("inf"),) * 3
        start, end = (tuple(np.split(each, bounds)) for each in (simulator.start, simulator.end))
        timing = Timing(start, end, (), np.empty((0, 2)))
        made = replace(self._given, order=tuple(self._rows))
        timing = replace(timing, averages=averages(made, timing))
        objective = made.problem.objective
        return timing.iteration_time(objective), timing.cost(objective), sum(timing.averaged_spans)


def _less(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """Whether the first of the figures that differ is less."""
    slack = ROUNDING * other[-1]
    return next((a < b for a, b in zip(one, other, strict=True) if abs(a - b) > slack), False)


def _moves(row: IntArray) -> Iterator[IntArray]:
    """Rows with W's moved: of each stage, an earlier W of another one, or all from there on, is put
    after its last W; or its own later W's before that one. The latest come first.
    """
    kind, stage = row & KIND_MASK, row >> STAGE_SHIFT & STAGE_MASK
    weights = np.flatnonzero(kind == OpKind.W)
    for stage_ends in np.unique(stage[weights]):
        own = weights[stage[weights] == stage_ends]
        last = int(own[-1])
        others = weights[(stage[weights] != stage_ends) & (weights < last)]
        for n, at in enumerate(reversed(others.tolist())):
            yield _moved(row, others[-1 - n : len(others) - n], last + 1)
            yield _moved(row, own[own > at], at)
            if n:
                yield _moved(row, others[-1 - n :], last + 1)


def _moved(row: IntArray, places: IntArray, to: int) -> IntArray:
    """The row with the ops at ``places`` put before the one at ``to``, in the same order."""
    stays = np.ones(len(row), dtype=np.bool_)
    stays[places] = False
    before, after = row[:to][stays[:to]], row[to:][stays[to:]]
    return np.concatenate([before, row[places], after])
