"""Skips: what a stage makes for one that is not the next.

It is one more tensor of every edge in between: the stages there do not see it, their ranks hold it
as long as what they receive with it, and its gradient comes back the same way::

    stage 0 ─(x, skip)─▶ stage 1 ─(y, skip)─▶ stage 2       skips = [(0, 2)]
       returns (x, skip)   takes x, returns y   takes (y, skip)
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from pipeloom.ir.errors import InputError

from ..errors import ShapeError


class Skips:
    """Tensors of pairs of stages (i, j), one each: an output of i that is an input of j."""

    def __init__(self, pairs: Sequence[tuple[int, int]], stages: int) -> None:
        for pair in pairs:
            source, target = pair
            if not 0 <= source < target < stages:
                raise InputError(
                    f"skips: expected pairs of stages 0 to {stages - 1}, forward, got {pair}"
                )
        self._pairs = [(source, target) for source, target in pairs]

    def passes(self, stage: int) -> bool:
        """Whether a skip starts at the stage, ends there, or comes by."""
        return any(source <= stage <= target for source, target in self._pairs)

    def arguments(self, stage: int, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The module's, of all that comes to the stage."""
        direct, skipping = self._parted(stage, inputs)
        ending = (skipping[k] for k, (_, target) in enumerate(self._pairs) if target == stage)
        return (*direct, *ending)

    def outputs(
        self, stage: int, outputs: Sequence[Tensor], inputs: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """The tensors that the stage hands on, of its module's outputs and of skips that came
        by."""
        _, skipping = self._parted(stage, inputs)
        starting = [k for k, (source, _) in enumerate(self._pairs) if source == stage]
        cut = len(outputs) - len(starting)
        if cut < 0:
            raise ShapeError(f"{len(starting)} skips start here, got {len(outputs)} outputs")
        skipping |= dict(zip(starting, outputs[cut:], strict=True))
        return (*outputs[:cut], *(skipping[k] for k in self._over(stage)))

    def _parted(
        self, stage: int, inputs: Sequence[Tensor]
    ) -> tuple[Sequence[Tensor], dict[int, Tensor]]:
        over = self._over(stage - 1)
        cut = len(inputs) - len(over)
        return inputs[:cut], dict(zip(over, inputs[cut:], strict=True))

    def _over(self, stage: int) -> list[int]:
        """The skips on the edge behind the stage."""
        return [k for k, (source, target) in enumerate(self._pairs) if source <= stage < target]
