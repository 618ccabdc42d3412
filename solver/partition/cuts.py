"""Cuts of layers into stages: those allowed, the even one, the balanced one, and neighbours.

A cut is the first layer of each stage, ``(0, 3, 7)`` for three stages. The best of all cuts by a
sum or a maximum over stages is found stage by stage, from the last one on
(:meth:`Cutter.best_path`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TypeAlias

import numpy as np

from pipeloom.ir.model.layered_profile import LayeredProfile
from pipeloom.ir.model.layers import LayerKind
from pipeloom.ir.model.ops import FloatArray

Cut: TypeAlias = tuple[int, ...]
"""The first layer of each stage."""
Price: TypeAlias = Callable[[int], FloatArray]
"""The cost of each run of layers as stage k: (L + 1, L + 1) by first layer and end."""
Combine: TypeAlias = Callable[[FloatArray, FloatArray], FloatArray]
"""The sum or the maximum over stages."""

TIE = 1e-12


@dataclass(frozen=True, slots=True)
class Rules:
    """The numbers of layers that a stage may have; ``most``: any where None."""

    least: int = 1
    most: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Cutter:
    """The cuts of ``profile`` into ``stages`` that keep ``rules`` and divide no tied layers."""

    profile: LayeredProfile
    stages: int
    rules: Rules = Rules()

    @property
    def number(self) -> int:
        """The number of layers, L."""
        return len(self.profile.layers)

    def penalty(self) -> FloatArray:
        """0 for a run of layers that may be a stage, else infinite, by first layer and end."""
        at = np.arange(self.number + 1)
        length = at[None, :] - at[:, None]
        most = self.number if self.rules.most is None else self.rules.most
        ends = np.array([True, *(not tied for tied in self.profile.tied)])
        allowed = (length >= self.rules.least) & (length <= most) & ends[:, None] & ends[None, :]
        return np.where(allowed, 0.0, np.inf)

    def allowed(self, cut: Cut) -> bool:
        lengths = [b - a for a, b in pairwise((*cut, self.number))]
        most = self.number if self.rules.most is None else self.rules.most
        return all(self.rules.least <= n <= most for n in lengths) and not any(
            self.profile.tied[start - 1] for start in cut[1:]
        )

    def sums(self, key: str) -> FloatArray:
        """The sums of ``key`` up to each layer, shape (L + 1,); unknown counts as 0."""
        values = [getattr(layer, key) or 0.0 for layer in self.profile.layers]
        return np.array([0.0, *accumulate(values)])

    def runs(self, key: str) -> FloatArray:
        """The sum of ``key`` over each run of layers, by first layer and end; 0 for no run."""
        sums = self.sums(key)
        return np.maximum(0.0, sums[None, :] - sums[:, None])

    def even(self) -> Cut | None:
        """The cut with as many blocks a stage, the first ones one more, other layers at the ends.

        Where a rule forbids that, it is the allowed cut that is the fewest layers away.
        """
        target = self._even()
        penalty, at = self.penalty(), np.arange(self.number + 1)

        def price(stage: int) -> FloatArray:
            return np.asarray(penalty + np.abs(at - target[stage])[:, None])

        return self.best_path(price, np.add)

    def _even(self) -> Cut:
        blocks = [
            i
            for i, layer in enumerate(self.profile.layers)
            if layer.layers[0].kind is LayerKind.BLOCK
        ]  # fmt: skip
        if len(blocks) < self.stages:
            blocks = list(range(self.number))
        each, more = divmod(len(blocks), self.stages)
        counts = [each + (stage < more) for stage in range(self.stages)]
        starts = [0, *accumulate(counts)][:-1]
        return (0, *(blocks[min(start, len(blocks) - 1)] for start in starts[1:]))

    def balanced(
        self, penalty: FloatArray | None = None, sizes: FloatArray | None = None
    ) -> Cut | None:
        """The cut with the least longest stage, and of those the one with the most equal stages.

        ``penalty``: also infinite for runs that do not fit in memory; None where no cut is left.
        ``sizes``: of each run of layers, to be equal instead of times.
        """
        penalty = self.penalty() if penalty is None else penalty
        if sizes is None:
            sizes = self.runs("t_f") + self.runs("t_b") + self.runs("t_w")
        times = sizes + penalty
        longest = self.best_value(lambda _: times, np.maximum)
        if not np.isfinite(longest):
            return None
        with np.errstate(invalid="ignore"):
            squares = np.where(times <= longest * (1 + TIE), times**2, np.inf)
        return self.best_path(lambda _: squares, np.add)

    def neighbours(self, cut: Cut) -> Iterator[Cut]:
        """The cuts with one layer moved over a boundary, or over several that follow each other."""
        for first in range(1, self.stages):
            for last in range(first, self.stages):
                for by in (-1, 1):
                    between = (s + by for s in cut[first : last + 1])
                    moved = (*cut[:first], *between, *cut[last + 1 :])
                    if self.allowed(moved):
                        yield moved
                    elif last == first and (jump := self._over_tied(cut, first, by)):
                        yield jump

    def _over_tied(self, cut: Cut, stage: int, by: int) -> Cut | None:
        """The cut with the boundary of ``stage`` moved past layers that are not cut apart."""
        start = cut[stage] + by
        while 0 < start < self.number and self.profile.tied[start - 1]:
            start += by
        moved = (*cut[:stage], start, *cut[stage + 1 :])
        return moved if start < self.number and self.allowed(moved) else None

    def best_value(self, price: Price, combine: Combine) -> float:
        """The least sum, or maximum, of the prices of a cut's stages; infinite without any cut."""
        return float(self._ahead(price, combine)[0][0])

    def best_path(self, price: Price, combine: Combine) -> Cut | None:
        """A cut of the best value; of equal ones the one with the shortest first stages."""
        ahead = self._ahead(price, combine)
        if not np.isfinite(ahead[0][0]):
            return None
        starts = [0]
        for stage in range(self.stages - 1):
            costs = combine(price(stage)[starts[-1]], ahead[stage + 1])
            starts.append(int(np.argmin(costs)))
        return tuple(starts)

    def _ahead(self, price: Price, combine: Combine) -> list[FloatArray]:
        """The least value of the stages from each one on, by its first layer, (L + 1,) each."""
        end = np.full(self.number + 1, np.inf)
        end[-1] = 0.0
        found = [end]
        for stage in range(self.stages - 1, -1, -1):
            found.append(combine(price(stage), found[-1][None, :]).min(axis=1))
        return found[::-1]
