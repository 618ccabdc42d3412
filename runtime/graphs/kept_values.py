"""The values of a microbatch between the ops of a stage that runs as graphs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..measure.memory import Held, Memory
from .stage_functions import StageFunctions


class Kept:
    """The values that a microbatch holds between ops; counted in the ledger.

    ``box``: on the last stage, the outputs' gradients from the loss's backward.
    """

    __slots__ = ("_held", "_memory", "box", "functions", "values")

    def __init__(self, functions: StageFunctions, memory: Memory) -> None:
        self.functions, self._memory = functions, memory
        self.values: list[Any] = []
        self.box: dict[int, Tensor] = {}
        self._held: Held = ()

    def hold(self, values: list[Tensor]) -> None:
        """Holds these values; there must be none before."""
        self.values, self._held = values, self._memory.hold(*values)

    def take(self) -> list[Any]:
        """Releases the values and returns them, for an op that drops them one by one."""
        self._memory.release(self._held)
        values, self.values, self._held = self.values, [], ()
        return values

    def clear(self) -> None:
        """Drops all values."""
        self.take()


class _Caught(torch.autograd.Function):
    """The identity on an output, whose backward stores the gradient in ``box``.

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
    """Returns the output; its gradient goes into ``box``. ``anchor`` makes autograd compute it."""
    found: Tensor = _Caught.apply(output, anchor, box, index)  # type: ignore[no-untyped-call]
    return found
