"""The values of a microbatch between the ops of a stage that is run as graphs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..measure.memory import Held, Memory
from .stage_functions import StageFunctions


class Kept:
    """The values that a microbatch holds from one op to the next, which the ledger counts.

    ``box``: of the last stage, the gradients that the loss's backward leaves of outputs.
    """

    __slots__ = ("_held", "_memory", "box", "functions", "values")

    def __init__(self, functions: StageFunctions, memory: Memory) -> None:
        self.functions, self._memory = functions, memory
        self.values: list[Any] = []
        self.box: dict[int, Tensor] = {}
        self._held: Held = ()

    def hold(self, values: list[Tensor]) -> None:
        """Holds these values, after none."""
        self.values, self._held = values, self._memory.hold(*values)

    def take(self) -> list[Any]:
        """Gives the values to an op that lets go of them one by one."""
        self._memory.release(self._held)
        values, self.values, self._held = self.values, [], ()
        return values

    def clear(self) -> None:
        """Lets go of all."""
        self.take()


class _Caught(torch.autograd.Function):
    """An output as the loss is given it: its gradient goes into ``box``, and its memory is not
    held for that."""

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
    """The same output, whose gradient goes into the ``box``; ``anchor`` is what needs one."""
    found: Tensor = _Caught.apply(output, anchor, box, index)  # type: ignore[no-untyped-call]
    return found
