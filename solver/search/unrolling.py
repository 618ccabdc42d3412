"""From a schedule of few microbatches to one of many: its steady state, repeated.

Far from both ends a good schedule goes on in periods: d microbatches later every rank does the same
again. So an order of M' microbatches makes orders of M' + n d: cut a rank's order right after some
B(c) and right after B(c + d). Where it runs d F's and d W's between the cuts as well, it can run
the piece between them n more times, each time on microbatches d further on (here d = 1, n = 2)::

    M' = 3  F0 F1 B0 W0|F2 B1 W1|B2 W2
    M  = 5  F0 F1 B0 W0|F2 B1 W1|F3 B2 W2|F4 B3 W3|B4 W4

It holds as much memory at one cut as at the other, so that no limit is exceeded; the cuts are about
the same B on all ranks, and how well they go together is for the simulator to say: some can never
run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from ..core.options import Order, SolveOptions
from ..core.overlap_relaxation import without_overlap
from ..core.tolerances import ROUNDING
from ..core.worker_threads import Pieces

STEP = 48
"""About how many microbatches are left out, or a multiple of it: their divisors are the periods."""
CUTS = 12
"""How many places are tried for each period."""
APART = 6
"""How many B's the cuts of two ranks are apart at most, on either side of the place."""
FEWER = 2 / 3
"""Of the microbatches; more than that are not worth a search of their own."""
UNROLL_WORK = 40_000_000
"""Simulated ops in a round on fewer microbatches."""
ENDLESS = 1e290
"""A limit on work that only keeps the search of fewer microbatches from looking at the clock."""


def fewer_microbatches(problem: Problem) -> list[int]:
    """How many microbatches show the steady state: few of them, where many more are asked for."""
    if problem.placement.passing is not Passing.ACTIVATIONS:
        return []
    slots = _slots(problem)
    ends = max(len(set(problem.placement.owners)), slots)  # a warm-up and a cool-down
    step = slots * max(1, STEP // slots)  # slots turn over in a period, or in some of them
    found = {n * ends + (problem.microbatches - n * ends) % step for n in (2, 3)}
    return sorted(fewer for fewer in found if fewer <= problem.microbatches * FEWER)


def _slots(problem: Problem) -> int:
    """How many microbatches fit on all stages of a rank at once, where most do; from 1 to M."""
    costs = Costs.of(problem)
    sizes = np.bincount(problem.placement.owners, costs.m_b, problem.ranks)
    limits = costs.limit * (1 + ROUNDING)
    most = max(
        limit / size if size > 0 else np.inf
        for rank, (limit, size) in enumerate(zip(limits, sizes, strict=True))
        if rank in problem.placement.owners
    )
    return int(max(1, min(most, problem.microbatches)))


class Unroller:
    """Searches a schedule of fewer microbatches and repeats its steady state."""

    def __init__(self, best: Incumbent, fewer: int, search: Callable[[Incumbent], Pieces]) -> None:
        problem = without_overlap(replace(best.problem, microbatches=fewer))
        self._small = Incumbent(
            problem, next(lower_bounds(problem)), SolveOptions(work_limit=ENDLESS)
        )
        self._small.interrupt = best.interrupt
        self._pieces = search(self._small)
        self._unrolled = float("inf")
        ops = 3 * best.problem.microbatches
        lengths = [ops * len(best.problem.placement.stages_of(r)) for r in range(problem.ranks)]
        self._simulator = Simulator(best.problem, np.append(0, np.cumsum(lengths)))

    @property
    def able(self) -> bool:
        return not self._small.closed

    def round(self, best: Incumbent) -> None:
        small, before = self._small, self._small.work.used
        for _ in self._pieces:
            if small.over() or small.work.used - before > UNROLL_WORK:
                break
        best.work.spend(small.work.used - before)
        if small.order is None or not small.cost < self._unrolled:
            return
        self._unrolled = small.cost
        for rows in unrolled(small.order, small.problem.microbatches, best.problem.microbatches):
            if best.over():
                return
            best.work.spend(best.problem.stages * best.problem.microbatches * 3)
            best.offer(rows, "unrolled", self._simulator.cost(np.concatenate(rows)))


def unrolled(rows: Order, fewer: int, microbatches: int) -> Iterator[Order]:
    """Orders of ``microbatches`` from one of ``fewer``.

    Only where every rank runs each kind of each of its stages in the order of microbatches.
    """
    used = [row for row in rows if len(row)]
    if not all(_in_order(row, fewer) for row in used):
        return
    ends = [_ends(row) for row in used]
    counts = list(map(_counts, used, ends))
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
                    _repeat(row, *_between(*next(cuts), period), period, more) if len(row) else row
                    for row in rows
                )


def _in_order(row: IntArray, microbatches: int) -> bool:
    classes, every = row & CLASS_MASK, np.arange(microbatches)
    stages = np.unique(row >> STAGE_SHIFT & STAGE_MASK)
    return all(
        np.array_equal(row[classes == (stage << STAGE_SHIFT | kind)] >> MICROBATCH_SHIFT, every)
        for stage in stages.tolist()
        for kind in (OpKind.F, OpKind.B, OpKind.W)
    )


def _ends(row: IntArray) -> IntArray:
    """The places after each B of the rank's lowest stage, the last of a microbatch's B's: shape
    (M',)."""
    lowest = int((row >> STAGE_SHIFT & STAGE_MASK).min())
    return 1 + np.flatnonzero(row & CLASS_MASK == lowest << STAGE_SHIFT | OpKind.B)


def _counts(row: IntArray, ends: IntArray) -> IntArray:
    """How many ops of each kind and stage come before ``ends``, shape (M', kinds and stages)."""
    classes = row & CLASS_MASK
    every = [(classes == each).cumsum()[ends - 1] for each in np.unique(classes)]
    return np.stack(every, axis=1)


def _between(ends: IntArray, cut: int, period: int) -> tuple[int, int]:
    return int(ends[cut]), int(ends[cut + period])


def _repeat(row: IntArray, first: int, last: int, period: int, more: int) -> IntArray:
    """``row`` with what lies between its cuts run until ``more`` microbatches are done."""
    shifts = np.arange(period, more + 1, period)[:, None] << MICROBATCH_SHIFT
    again = (row[first:last] + shifts).ravel()
    return np.concatenate([row[:last], again, row[last:] + (more << MICROBATCH_SHIFT)])
