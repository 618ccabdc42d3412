"""Robust constructors: orders from nothing, chosen by their cost over samples of op times.

They are the constructors of :mod:`..construct.linear`, built for the delays that there are or for
longer ones: a message that has longer may be late by as much without harm. Their parameters are
tuned by the samples, and move ops on all ranks at once; annealing moves a few, and where there are
thousands it takes long to shift them all.
"""

from __future__ import annotations

import numpy as np

from pipeloom.ir.model.problem import Problem

from ..construct.linear import Constructor, settings
from ..core.bound import Bound
from ..core.incumbent import Incumbent
from ..core.linear_instance import LinearInstance
from ..core.options import Order, SolveOptions
from .constructor_search import RoundTuner, Tried, building
from .robust_annealing import RobustAnnealer

LONGER = (0.0, 6.0)
"""By how much delays are longer, in standard deviations of an op."""
FIRST = 0.5
"""Share of the budget for parameters that are given; the other is for tuning the best of them."""


def constructed(
    problem: Problem,
    bound: float,
    annealer: RobustAnnealer,
    options: SolveOptions,
    rng: np.random.Generator,
) -> list[Order]:
    """The best orders found within ``options``, one of each length of delays; none where a rank has
    several stages, or microbatches are unlike. ``bound``: on the cost at the profile's times."""
    linear = None if problem.profile.unlike else LinearInstance.of(problem)
    if linear is None:
        return []
    share = options.share(1 / len(LONGER))
    searches = (_Search(problem, _with_longer_delays(linear, by * annealer.deviation), annealer,
                        share) for by in LONGER)  # fmt: skip
    found = (search.run(bound, rng) for search in searches)
    return [order for order in found if order is not None]


def _with_longer_delays(linear: LinearInstance, by: float) -> LinearInstance:
    down, up = (np.append(delays[:-1] + by, 0.0) for delays in (linear.down, linear.up))
    return linear._replace(down=down, up=up)


class _Search(Constructor):
    """Builds orders for ``linear``, which cost what ``annealer`` says."""

    def __init__(
        self,
        problem: Problem,
        linear: LinearInstance,
        annealer: RobustAnnealer,
        options: SolveOptions,
    ) -> None:
        super().__init__(problem, linear)
        self._problem, self._annealer, self._first = problem, annealer, options.share(FIRST).budget
        self._best = Incumbent(problem, Bound(0.0, "none", "none"), options)

    def cost(self, rows: Order) -> float:
        self._best.work.spend(self._annealer.ops_of_cost)
        return self._annealer.cost(rows)

    def run(self, bound: float, rng: np.random.Generator) -> Order | None:
        best, tried = self._best, list[Tried]()
        build = building(3 * self.linear.stages * self.linear.microbatches)
        for parameters in settings(self.linear, bound, self.linear.lags(self._problem.objective)):
            if best.over() or self._first.time() or best.work.used > self._first.work.ops:
                break
            best.work.spend(build)
            rows = self.build(parameters)
            if rows is not None:
                cost = self.cost(rows)
                tried.append((cost, parameters))
                best.offer(rows, "search", cost)
        tuner = RoundTuner(self, tried, rng)
        while tuner.able and not best.over():
            tuner.round(best)
        return best.order
