"""Better schedules near the best one by CP-SAT: what all ranks run within some time is put in order
anew.

Before and after such a window the order stays as it is, so that the model of all orders
(:mod:`..exact.orders.general_interleaving`) has few pairs to decide. It is asked for a schedule
that costs a little less. Where a window has none the next is wider, where there was no answer it is
narrower.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.model.ops import FloatArray, OpKind, fields_of, split_backwards
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.schedule import Schedule

from ..core.decomposition import streams_of
from ..core.incumbent import Incumbent
from ..core.options import Order
from ..core.stopping import OPS_A_SECOND
from ..exact.orders.rank_orders import OpClass

if TYPE_CHECKING:
    from ..exact.orders.general_interleaving import Blocks

STEP = 0.002  # of the cost, by which a window's schedules are better at least
PAIRS = 1500.0  # of ops in the first window
SHARE, SECONDS = 1 / 8, 3.0  # of the time left for a window, and at most
PAIR = 2e-4  # seconds that a pair takes before CP-SAT begins
WIDER, NARROWER = 1.3, 0.8  # pairs of the next window
OPS = 5_000  # of a problem at most: a model has them all


class WindowSearch:
    """Asks windows at random moments, where there is time for some of them."""

    def __init__(self, best: Incumbent, rng: np.random.Generator) -> None:
        problem = best.problem
        self._best, self._rng, self._pairs = best, rng, PAIRS
        self._streams = {j: n for n, own in enumerate(streams_of(problem)) for j in own}
        self._small = 3 * problem.stages * problem.microbatches <= OPS and problem.limited

    @property
    def able(self) -> bool:
        return self._small and self._room() >= PAIRS

    def _room(self) -> float:
        """The pairs of which a model is made in half of a window's time."""
        budget = self._best.budget(SHARE, SECONDS)
        return min(budget.time.left, budget.work.left / OPS_A_SECOND) / (2 * PAIR)

    def round(self, best: Incumbent) -> None:
        from ..exact.orders.general_interleaving import GeneralInterleaving
        from ..exact.orders.target_bisection import find

        self._pairs = min(self._pairs, self._room())
        best.work.spend(self._pairs * PAIR * OPS_A_SECOND)
        order, _, cost = best.found()
        blocks = self._blocks(best.problem, tuple(map(split_backwards, order)))
        model = GeneralInterleaving(best.problem, best.bound.value, cost * (1 - STEP), blocks)
        seed = int(self._rng.integers(1 << 31))
        search = find(best, model, best.budget(SHARE, SECONDS), seed)
        if best.cost == cost:
            self._pairs *= WIDER if search.refuted else NARROWER

    def _blocks(self, problem: Problem, order: Order) -> Blocks:
        """A window as one block of each rank; what starts a rank stays where it is."""
        starts = simulate(Schedule(problem, order)).start
        middle = self._rng.uniform(0.0, max(row[-1] for row in starts))
        apart = [abs(row - middle) for row in starts]
        width, first = self._width(apart), 0
        found: dict[tuple[OpClass, int], int] = {}
        for row, away in zip(order, apart, strict=True):
            seen: Counter[OpClass] = Counter()
            inside = away <= width
            inside[:1] = False
            window = first + int(inside.argmax())
            for at, (kind, stage, j) in enumerate(np.stack(fields_of(row), axis=1).tolist()):
                each = OpClass(OpKind(kind), stage, self._streams[j])
                found[each, seen[each]] = window if inside[at] else first + at
                seen[each] += 1
            first += len(row)
        return found

    def _width(self, apart: Sequence[FloatArray]) -> float:
        """How far from its middle a window reaches that has so many pairs."""
        distances = np.concatenate(apart)
        ranks = np.repeat(np.arange(len(apart)), list(map(len, apart)))
        inside, pairs = np.zeros(len(apart)), 0.0
        for at in np.argsort(distances, kind="stable").tolist():
            pairs += inside[ranks[at]]
            inside[ranks[at]] += 1
            if pairs > self._pairs:
                return float(distances[at])
        return float("inf")
