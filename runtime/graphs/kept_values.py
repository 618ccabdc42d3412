"""The values that a stage that runs as graphs keeps for a microbatch from one op to the next."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..measure.memory import Held, Memory
from .stage_functions import StageFunctions


class Kept:
    """The values that a microbatch holds between ops; the ledger counts them.

    ``functions``: the stage's functions that return and take these values. ``box``: on the last
    stage, the gradients of the outputs that the backward of the loss has computed, by the output's
    position.
    """

    __slots__ = ("_held", "_memory", "box", "functions", "values")

    def __init__(self, functions: StageFunctions, memory: Memory) -> None:
        self.functions, self._memory = functions, memory
        self.values: list[Any] = []
        self.box: dict[int, Tensor] = {}
        self._held: Held = ()

    def hold(self, values: list[Tensor]) -> None:
        """Holds ``values``; must not be called while other values are held."""
        self.values, self._held = values, self._memory.hold(*values)

    def take(self) -> list[Any]:
        """Returns the held values and stops holding them.

        The caller's op drops each value after its last use.
        """
        self._memory.release(self._held)
        values, self.values, self._held = self.values, [], ()
        return values

    def clear(self) -> None:
        """Drops all values."""
        self.take()


class _Caught(torch.autograd.Function):
    """Returns an output unchanged; its backward stores the output's gradient in ``box[index]``.

    It does not keep the output's memory.
    """

    @staticmethod
    def forward(
        ctx: Any, output: Tensor, anchor: Tensor, box: dict[int, Tensor], index: int
    ) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.box, ctx.index = box, index
        return output.detach()

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None) -> tuple[None, ...]:
        if dy is not None:
            ctx.box[ctx.index] = dy
        return None, None, None, None


def caught(output: Tensor, anchor: Tensor, box: dict[int, Tensor], index: int) -> Tensor:
    """Returns ``output`` such that the backward pass stores its gradient in ``box[index]``.

    ``anchor``: any tensor that requires a gradient. Autograd therefore runs this part of the
    backward pass even if ``output`` requires none.
    """
    found: Tensor = _Caught.apply(output, anchor, box, index)  # type: ignore[no-untyped-call]
    return found
