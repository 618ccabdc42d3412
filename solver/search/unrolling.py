"""Extend schedules of fewer microbatches, and exchange pieces of the best schedule.

Far from its ends a good schedule is periodic. So a schedule of few microbatches, which is found
much sooner, shows how to run many (:mod:`.splicing`).
"""

from __future__ import annotations

import numpy as np

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.model.placement import Passing
from pipeloom.ir.model.problem import Problem

from ..core.incumbent import Incumbent
from ..core.methods import Method
from ..core.relaxations import has_remat
from ..core.stopping import Budget
from ..core.streams import as_many_each_way, streams_of
from ..core.tolerances import ROUNDING, counts_within
from .splicing import BUILT, CUTS, Splices, lengthened

FEWER = 2 / 3  # fewer microbatches are searched only if they are at most this share of all
LENGTHENING = 16  # slices of work to extend a schedule
ROUND = 4  # slices of work in a round of splicing
# minimum number of cuts tried to remove a piece; each period gets 1 / PART of the work
LEAST, PART = 4, 16


def fewer_microbatches(problem: Problem) -> list[int]:
    """Return smaller numbers of microbatches with which a schedule still reaches its steady state.

    They are in ascending order. The list is empty if M is too small, or if :func:`in_pieces`
    returns False, or if ranks send weights.
    """
    if not in_pieces(problem) or problem.placement.passing is not Passing.ACTIVATIONS:
        return []
    ends = max(problem.ranks, _slots(problem))  # microbatches in a warm-up and a cool-down
    return [n * ends for n in (2, 3) if n * ends <= problem.microbatches * FEWER]


def in_pieces(problem: Problem) -> bool:
    """Return whether pieces of schedules can be repeated and removed (:class:`.splicing.Splices`).

    They can if microbatches are equal, every stream has the same number of them, at least two, and
    there is neither recomputation nor offload.
    """
    return (
        as_many_each_way(problem)
        and problem.microbatches >= 2 * len(streams_of(problem))
        and not (problem.profile.unlike or has_remat(problem))
    )


def _slots(problem: Problem) -> int:
    """Return the maximum, over the ranks, of the number of microbatches that fit in memory.

    The result is at least 1 and at most M.
    """
    costs = Costs.of(problem)
    held = np.bincount(costs.owner[:, 0], costs.m_b, problem.ranks)
    fit = counts_within(costs.limit * (1 + ROUNDING), held, problem.microbatches)
    return max(1, int(fit[list(set(costs.owner[:, 0].tolist()))].max()))


def unroll(best: Incumbent, small: Incumbent, rng: np.random.Generator) -> None:
    """Extend the best schedule in ``small`` to all microbatches of ``best``, and offer the result.

    ``small`` is the incumbent of the same problem with fewer microbatches. Nothing is offered if no
    extended schedule fits in memory, or if time or work runs out.
    """
    order, _, _ = small.found()
    budget = _budget(best, LENGTHENING)
    found = lengthened(best.problem, order, small.problem.microbatches, rng, budget)
    best.work.spend(budget.work.used)
    if found is not None:
        best.offer(found, Method.UNROLL)


class SpliceSearch:
    """A method that removes pieces of the best schedule and repeats other pieces instead."""

    able = True

    def __init__(self, problem: Problem, rng: np.random.Generator) -> None:
        self._problem, self._rng = problem, rng

    def round(self, best: Incumbent) -> None:
        order, _, _ = best.found()
        budget = _budget(best, ROUND)
        cuts = int(np.clip(budget.work.left / (PART * BUILT * sum(map(len, order))), LEAST, CUTS))
        splices = Splices(self._problem, order, self._rng, cuts)
        periods = splices.periods(self._problem.microbatches // 2)
        for period in self._rng.permutation(periods).tolist():
            left_out = splices.best([period], -1, budget)
            if left_out is not None:
                shorter = splices.spliced(left_out.cut, period, -1)
                fewer = self._problem.microbatches - period
                found = lengthened(best.problem, shorter, fewer, self._rng, budget)
                if found is not None:
                    best.offer(found, Method.SPLICE)
            if budget() or best.over():
                break
        best.work.spend(budget.work.used)


def _budget(best: Incumbent, slices: int) -> Budget:
    """Return a budget with all the time that ``best`` has left, and part of the work it has left.

    The work is at most ``slices`` times :attr:`Incumbent.slice`.
    """
    left = best.budget()
    return Budget(left.time.left, min(left.work.left, slices * best.slice), best.interrupt)
