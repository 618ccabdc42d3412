"""Source of each tensor that is sent, and destination of each tensor that is received."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from pipeloom.ir.model import program as ir

from ..rank.context import RankContext
from ..stages.streamed_weights import StreamedStages
from ..tensors.packed_message import PackedMessage, Spec
from ..tensors.stage_interface import StageInterface
from .messages import give_input, take_gradient, take_output
from .stage_runner import Cell


def routes(
    context: RankContext,
    cells: Mapping[tuple[int, int], Cell],
    interfaces: Sequence[Sequence[StageInterface]],
) -> Mapping[ir.TensorKind, ActivationRouting | StreamedStages]:
    """Returns the routing of each kind of tensor.

    Activations and their gradients move between cells; streamed weights and their gradients are
    routed by the store.
    """
    activations = ActivationRouting(cells, interfaces, context.device)
    routing: dict[ir.TensorKind, ActivationRouting | StreamedStages]
    routing = dict.fromkeys(ir.TensorKind, activations)
    if isinstance(context.store, StreamedStages):
        routing[ir.TensorKind.WEIGHT] = routing[ir.TensorKind.GRADIENT] = context.store
    return routing


class ActivationRouting:
    """Routes outputs (``x``, named by the receiving stage) and their gradients (``dy``).

    ``interfaces[s][j]`` describes the output of stage s for microbatch j. A receive buffer consists
    of bytes and is long enough for the longest message of any microbatch.
    """

    def __init__(
        self,
        cells: Mapping[tuple[int, int], Cell],
        interfaces: Sequence[Sequence[StageInterface]],
        device: torch.device,
    ) -> None:
        self._cells = cells
        self._interfaces = interfaces
        self._device = device

    def spec(self, kind: ir.TensorKind, stage: int) -> Spec:
        """Shape and dtype of a receive buffer."""
        count = len(self._interfaces[0])
        messages = (self._message(ir.Tensor(kind, stage, j)) for j in range(count))
        return Spec((max(message.nbytes for message in messages),), torch.uint8)

    def fitting(self, tensor: ir.Tensor, buffer: Tensor) -> Tensor:
        """The part of ``buffer`` that ``tensor`` fills."""
        return self._message(tensor).place(buffer)

    def taking(self, tensor: ir.Tensor) -> Callable[[], Tensor]:
        """Returns a function that takes the contiguous tensor to send out of its cell.

        It is called when the send is posted. The tensor may have a graph.
        """
        message = self._message(tensor)
        if tensor.kind is ir.TensorKind.X:
            source = self._cells[tensor.stage - 1, tensor.index]
            return partial(take_output, source, message, self._device)
        source = self._cells[tensor.stage + 1, tensor.index]
        return partial(take_gradient, source, message, self._device)

    def giving(self, tensor: ir.Tensor, buffer: Tensor) -> Callable[[], None]:
        """Returns a function that stores ``tensor``, once received into ``buffer``, in its cell."""
        cell = self._cells[tensor.stage, tensor.index]
        parts = self._message(tensor).tensors(buffer)
        if tensor.kind is ir.TensorKind.DY:
            return partial(setattr, cell, "dy", parts)
        needs_grad = self._interfaces[tensor.stage - 1][tensor.index].needs_grad
        return partial(give_input, cell, [*zip(parts, needs_grad, strict=True)])

    def _message(self, tensor: ir.Tensor) -> PackedMessage:
        if tensor.kind is ir.TensorKind.X:
            return self._interfaces[tensor.stage - 1][tensor.index].forward
        return self._interfaces[tensor.stage][tensor.index].backward
