"""Skip connections: an output of a stage that is the input of a later one.

It is sent as one more tensor between all stages in between. Their modules do not see it, but their
ranks hold it as long as the other received tensors. Its gradient returns the same way::

    stage 0 ─(x, skip)─▶ stage 1 ─(y, skip)─▶ stage 2       skips = [(0, 2)]
       returns (x, skip)   takes x, returns y   takes (y, skip)
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from pipeloom.ir.errors import InputError

from ..errors import ShapeError


class Skips:
    """Skip connections of pairs (i, j): one output of stage i is an input of stage j."""

    def __init__(self, pairs: Sequence[tuple[int, int]], stages: int) -> None:
        for pair in pairs:
            source, target = pair
            if not 0 <= source < target < stages:
                raise InputError(
                    f"skips: expected pairs of stages 0 to {stages - 1}, forward, got {pair}"
                )
        self._pairs = [(source, target) for source, target in pairs]

    def passes(self, stage: int) -> bool:
        """Whether a skip connection starts or ends at the stage or passes through it."""
        return any(source <= stage <= target for source, target in self._pairs)

    def arguments(self, stage: int, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Returns the arguments of the stage's module, from everything that the stage receives."""
        direct, skipping = self._parted(stage, inputs)
        ending = (skipping[k] for k, (_, target) in enumerate(self._pairs) if target == stage)
        return (*direct, *ending)

    def outputs(
        self, stage: int, outputs: Sequence[Tensor], inputs: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """Returns what the stage sends: its module's outputs and skips that pass through."""
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
        """Returns the skips between the stage and the next one."""
        return [k for k, (source, target) in enumerate(self._pairs) if source <= stage < target]
