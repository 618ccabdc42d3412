"""Cuts of layers into stages: allowed cuts, the even cut, the balanced cut, and neighboring cuts.

A cut is given by the first layer of each stage, such as ``(0, 3, 7)`` for three stages. Dynamic
programming over the stages, from the last one backwards, finds the cut with the lowest sum or
maximum of the prices of its stages (:meth:`Cutter.best_path`). Arrays "by first layer and end" give
a value for each run of layers first..end - 1, (L + 1, L + 1).
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
"""A function that returns, for a stage k, the price of each run of layers as this stage, by first
layer and end, (L + 1, L + 1)."""
Combine: TypeAlias = Callable[[FloatArray, FloatArray], FloatArray]
"""How the prices of stages are combined: their sum or their maximum."""

TIE = 1e-12


@dataclass(frozen=True, slots=True)
class Rules:
    """The minimum and the maximum number of layers of a stage; no maximum if ``most`` is None."""

    least: int = 1
    most: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Cutter:
    """Finds cuts of the layers of ``profile`` into ``stages`` stages.

    Only cuts that keep ``rules`` and separate no tied layers are allowed.
    """

    profile: LayeredProfile
    stages: int
    rules: Rules = Rules()

    @property
    def number(self) -> int:
        """The number of layers, L."""
        return len(self.profile.layers)

    def penalty(self) -> FloatArray:
        """Return 0 for each run of layers that may be a stage, else infinity.

        The result has shape (L + 1, L + 1), indexed by first layer and end (exclusive).
        """
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
        """Return the prefix sums of ``key`` over the layers, shape (L + 1,); the first one is 0.

        ``key``: the name of a number in the profile of a layer, such as ``t_f``; unknown values
        count as 0.
        """
        values = [getattr(layer, key) or 0.0 for layer in self.profile.layers]
        return np.array([0.0, *accumulate(values)])

    def runs(self, key: str) -> FloatArray:
        """Return the sum of ``key`` over each run of layers.

        The result has shape (L + 1, L + 1), indexed by first layer and end (exclusive), and is 0
        where end <= first. ``key``: the name of a number in the profile of a layer, such as
        ``t_f``; unknown values count as 0.
        """
        sums = self.sums(key)
        return np.maximum(0.0, sums[None, :] - sums[:, None])

    def even(self) -> Cut | None:
        """Return the cut with equally many blocks per stage, or None if no cut is allowed.

        Blocks are transformer layers. If their number is not a multiple of the number of stages,
        the first stages have one block more. Layers before the first block, such as an embedding,
        belong to the first stage, and layers after the last block to the last stage. If this cut is
        not allowed, the result is the allowed cut whose boundaries differ from it by the fewest
        layers in total.
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
        """Return the cut whose longest stage is shortest.

        If several cuts tie, it is the one with the smallest sum of the squared times of its stages.
        Returns None if ``penalty`` is infinite for some stage of every cut. Both arguments are
        arrays by first layer and end. ``penalty``: added to the time of a stage, by default
        :meth:`penalty`; it may also be infinite for runs of layers that do not fit in memory.
        ``sizes``: the sizes of stages to balance instead of their times.
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
        """Yield the allowed cuts in which one or several successive boundaries move by one layer.

        A boundary that moves alone, and would then separate layers that must stay together, moves
        past these layers instead.
        """
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
        """Return the cut with one boundary moved past layers that must stay together.

        ``stage``: the stage that begins at the boundary. ``by``: the direction, 1 for later layers
        and -1 for earlier ones. Returns None if that cut is not allowed.
        """
        start = cut[stage] + by
        while 0 < start < self.number and self.profile.tied[start - 1]:
            start += by
        moved = (*cut[:stage], start, *cut[stage + 1 :])
        return moved if start < self.number and self.allowed(moved) else None

    def best_value(self, price: Price, combine: Combine) -> float:
        """Return the minimum, over all cuts, of the sum (or maximum) of the prices of the stages.

        It is infinite if no cut has a finite value. ``combine``: how to combine two prices:
        ``np.add`` or ``np.maximum``.
        """
        return float(self._ahead(price, combine)[0][0])

    def best_path(self, price: Price, combine: Combine) -> Cut | None:
        """Return a cut that attains :meth:`best_value`, or None if that is infinite.

        If several cuts tie, it is the one with the shortest first stage, then second stage, and so
        on.
        """
        ahead = self._ahead(price, combine)
        if not np.isfinite(ahead[0][0]):
            return None
        starts = [0]
        for stage in range(self.stages - 1):
            costs = combine(price(stage)[starts[-1]], ahead[stage + 1])
            starts.append(int(np.argmin(costs)))
        return tuple(starts)

    def _ahead(self, price: Price, combine: Combine) -> list[FloatArray]:
        """Return, for each stage, the lowest sum (or maximum) of the prices from this stage on.

        The prices are those of this stage and all later ones. The result is a list of arrays of
        shape (L + 1,), indexed by the first layer of the stage: one for each stage, and one for the
        end of the last stage.
        """
        end = np.full(self.number + 1, np.inf)
        end[-1] = 0.0
        found = [end]
        for stage in range(self.stages - 1, -1, -1):
            found.append(combine(price(stage), found[-1][None, :]).min(axis=1))
        return found[::-1]
