"""From a schedule of few microbatches to one of many: its steady state, repeated.

Far from both ends a good schedule goes on in periods: d microbatches later every rank does the same
again. So an order of M' microbatches makes orders of M' + n d: cut a rank's order right after some
B(c) and right after B(c + d). Where it runs d F's and d W's between the cuts as well, it can run
the piece between them n more times, each time on microbatches d further on (here d = 1, n = 2)::

    M' = 3  F0 F1 B0 W0|F2 B1 W1|B2 W2
    M  = 5  F0 F1 B0 W0|F2 B1 W1|F3 B2 W2|F4 B3 W3|B4 W4

It holds as much memory at one cut as at the other, so that no limit is exceeded. The cuts are about
the same B on all ranks; the simulator says how well they go together: some can never run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.cost.simulator import Simulator
from pipeloom.ir.model.ops import (
    CLASS_MASK,
    MICROBATCH_SHIFT,
    STAGE_MASK,
    STAGE_SHIFT,
    IntArray,
    OpKind,
)
from pipeloom.ir.model.placement import Passing
from pipeloom.ir.model.problem import Problem

from ..bounds import lower_bounds
from ..core.incumbent import Incumbent
from ..core.linear_instance import counts_within
from ..core.options import Order, SolveOptions
from ..core.overlap_relaxation import without_overlap
from ..core.tolerances import ROUNDING
from ..core.worker_threads import Worker

STEP = 48  # about as many microbatches, or a multiple, are left out: their divisors are the periods
CUTS = 12  # places that are tried for each period
APART = 6  # B's that the cuts of two ranks are apart at most, on either side of the place
FEWER = 2 / 3  # of the microbatches, above which a search of its own is not worth it
SMALL_WORK = 40_000_000  # simulated ops in a round on the smaller problem
ENDLESS = SolveOptions(work_limit=1e290)  # so that its search looks at no clock


def fewer_microbatches(problem: Problem) -> list[int]:
    """Numbers of microbatches that show the steady state, where many more are asked for."""
    if problem.placement.passing is not Passing.ACTIVATIONS:
        return []
    slots = _slots(problem)
    ends = max(len(set(problem.placement.owners)), slots)  # a warm-up and a cool-down
    step = slots * max(1, STEP // slots)  # slots turn over in a period, or in some of them
    found = {n * ends + (problem.microbatches - n * ends) % step for n in (2, 3)}
    return sorted(fewer for fewer in found if fewer <= problem.microbatches * FEWER)


def _slots(problem: Problem) -> int:
    """The number of microbatches, from 1 to M, that fit on a rank, where most do."""
    costs = Costs.of(problem)
    owners = problem.placement.owners
    sizes = np.bincount(owners, costs.m_b, problem.ranks)
    fit = counts_within(costs.limit * (1 + ROUNDING), sizes, problem.microbatches)
    return max(1, int(fit[list(set(owners))].max()))


class SmallSearch:
    """The search of a smaller problem, in rounds of the large one's; ``ended``: nothing is left."""

    def __init__(self, best: Incumbent, small: Incumbent, search: Worker) -> None:
        small.interrupt = best.interrupt
        self._small, self._pieces, self.ended = small, search(small), False

    def go_on(self, best: Incumbent) -> None:
        small, before = self._small, self._small.work.used
        self.ended = True
        for _ in self._pieces:
            if small.over() or small.work.used - before > SMALL_WORK:
                self.ended = small.closed
                break
        best.work.spend(small.work.used - before)


class Unroller:
    """Searches a schedule of fewer microbatches and repeats its steady state."""

    def __init__(self, best: Incumbent, fewer: int, search: Worker) -> None:
        problem = without_overlap(replace(best.problem, microbatches=fewer))
        self._small = Incumbent(problem, next(lower_bounds(problem)), ENDLESS)
        self._search = SmallSearch(best, self._small, search)
        self._unrolled = float("inf")
        ops = 3 * best.problem.microbatches
        lengths = [ops * len(best.problem.placement.stages_of(r)) for r in range(problem.ranks)]
        self._simulator = Simulator(best.problem, np.append(0, np.cumsum(lengths)))

    @property
    def able(self) -> bool:
        return not self._small.closed

    def round(self, best: Incumbent) -> None:
        small = self._small
        self._search.go_on(best)
        if small.order is None or not small.cost < self._unrolled:
            return
        self._unrolled = small.cost
        for rows in unrolled(small.order, small.problem.microbatches, best.problem.microbatches):
            if best.over():
                return
            best.work.spend(best.problem.stages * best.problem.microbatches * 3)
            best.offer(rows, "unrolled", self._simulator.cost(np.concatenate(rows)))


def unrolled(rows: Order, fewer: int, microbatches: int) -> Iterator[Order]:
    """Orders of ``microbatches`` from one of ``fewer`` whose ops are in their sequence by class."""
    used = [row for row in rows if len(row)]
    if not all(_in_sequence(row, fewer) for row in used):
        return
    ends = [_cut_places(row) for row in used]
    counts = list(map(_counts_before, used, ends))
    more = microbatches - fewer
    for period in (d for d in range(1, min(fewer, STEP + 1)) if more % d == 0):
        # (ranks, M' - d)
        fits = np.array([(done[period:] - done[:-period] == period).all(axis=1) for done in counts])
        places = np.arange(fewer - period)
        for place in np.unique(np.linspace(0, fewer - period - 1, CUTS).astype(np.int64)):
            apart = np.where(fits, abs(places - place), fewer)
            if apart.min(axis=1).max() <= APART:
                cuts = zip(ends, apart.argmin(axis=1).tolist(), strict=True)
                yield tuple(
                    _repeated(row, *next(cuts), period, more) if len(row) else row for row in rows
                )


def _in_sequence(row: IntArray, microbatches: int) -> bool:
    classes, every = row & CLASS_MASK, np.arange(microbatches)
    stages = np.unique(row >> STAGE_SHIFT & STAGE_MASK)
    return all(
        np.array_equal(row[classes == (stage << STAGE_SHIFT | kind)] >> MICROBATCH_SHIFT, every)
        for stage in stages.tolist()
        for kind in (OpKind.F, OpKind.B, OpKind.W)
    )


def _cut_places(row: IntArray) -> IntArray:
    """The places after each B of the rank's lowest stage, shape (M',)."""
    lowest = int((row >> STAGE_SHIFT & STAGE_MASK).min())
    return 1 + np.flatnonzero(row & CLASS_MASK == lowest << STAGE_SHIFT | OpKind.B)


def _counts_before(row: IntArray, ends: IntArray) -> IntArray:
    """The number of ops of each class before each of ``ends``, shape (M', classes)."""
    classes = row & CLASS_MASK
    every = [(classes == each).cumsum()[ends - 1] for each in np.unique(classes)]
    return np.stack(every, axis=1)


def _repeated(row: IntArray, ends: IntArray, cut: int, period: int, more: int) -> IntArray:
    """``row`` with the ops between its cuts run until ``more`` microbatches are done."""
    first, last = int(ends[cut]), int(ends[cut + period])
    shifts = np.arange(period, more + 1, period)[:, None] << MICROBATCH_SHIFT
    again = (row[first:last] + shifts).ravel()
    return np.concatenate([row[:last], again, row[last:] + (more << MICROBATCH_SHIFT)])
