"""Skip connections: an additional output of a stage that is an input of a later stage.

The tensor is sent from stage to stage together with the other outputs. The modules of the stages
that it only passes through do not see it, but their ranks hold it as long as the other received
tensors. Its gradient is sent back through the same stages::

    stage 0 ─(x, skip)─▶ stage 1 ─(y, skip)─▶ stage 2       skips = [(0, 2)]
       returns (x, skip)   takes x, returns y   takes (y, skip)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from pipeloom.ir.errors import InputError

from ..errors import ShapeError
from .outputs import as_tuple


class Skips:
    """The skip connections (i, j) in ``pairs``: one output of stage i is an input of stage j.

    Raises InputError for a pair without 0 <= i < j < ``stages``.
    """

    def __init__(self, pairs: Sequence[tuple[int, int]], stages: int) -> None:
        for pair in pairs:
            source, target = pair
            if not 0 <= source < target < stages:
                raise InputError(
                    f"skips: expected pairs of stages 0 to {stages - 1}, forward, got {pair}"
                )
        self._pairs = pairs

    def around(self, stage: int, module: nn.Module) -> Callable[..., Any]:
        """Returns the function that maps all tensors that the stage receives to all that it sends.

        It calls ``module`` with the module's own inputs and the tensors of the skip connections
        that end at the stage, and passes on the tensors of those that end later. It raises
        ShapeError if the module returns fewer tensors than skip connections start at the stage. If
        the stage neither receives nor sends a tensor of a skip connection, returns ``module``
        itself.
        """
        received, sent = self._over(stage - 1), self._over(stage)
        starting = [k for k in sent if k not in received]
        ending = [k for k in received if k not in sent]

        def called(*inputs: Tensor, **options: Any) -> Any:
            own = len(inputs) - len(received)
            skipping = dict(zip(received, inputs[own:], strict=True))
            output = module(*inputs[:own], *(skipping[k] for k in ending), **options)
            if not sent:
                return output
            outputs = as_tuple(output)
            own = len(outputs) - len(starting)
            if own < 0:
                raise ShapeError(f"{len(starting)} skips start here, got {len(outputs)} outputs")
            skipping |= dict(zip(starting, outputs[own:], strict=True))
            return (*outputs[:own], *(skipping[k] for k in sent))

        return called if received or sent else module

    def _over(self, stage: int) -> list[int]:
        """Returns the indices of the skip connections whose tensor ``stage`` sends to the next one.

        They start at this stage or an earlier one, and end at a later one.
        """
        return [k for k, (source, target) in enumerate(self._pairs) if source <= stage < target]
