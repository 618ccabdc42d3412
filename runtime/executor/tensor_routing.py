"""The sources of tensors to send, and the destinations of received tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from pipeloom.ir.model import program as ir
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.model.transfers import previous

from ..rank.context import RankContext
from ..stages.streamed_weights import StreamedStages
from ..tensors.packed_message import PackedMessage
from ..tensors.stage_interface import StageInterface
from .messages import give_input, take_gradient, take_output
from .stage_runner import Cell


def routes(
    context: RankContext,
    cells: Mapping[tuple[int, int], Cell],
    interfaces: Sequence[Sequence[StageInterface]],
) -> Mapping[ir.TensorKind, Routing]:
    """Returns, for each kind of tensor, the object that finds the tensors' source and destination.

    Activations and their gradients are taken from ``cells`` and stored in them; weights and their
    gradients, in the stages of ``context.store``.
    """
    activations = ActivationRouting(cells, interfaces, context.device)
    routing: dict[ir.TensorKind, Routing] = dict.fromkeys(ir.TensorKind, activations)
    if isinstance(context.store, StreamedStages):
        weights = WeightRouting(context.store, context.program.schedule)
        routing[ir.TensorKind.WEIGHT] = routing[ir.TensorKind.GRADIENT] = weights
    return routing


class ActivationRouting:
    """Finds the cells of activations (``x``) and their gradients (``dy``).

    ``x2.0`` is the input of stage 2 for microbatch 0, taken from the cell of stage 1. ``dy2.0`` is
    the gradient of stage 2's output, taken from the cell of stage 3. ``interfaces[s][j]`` describes
    the outputs of stage s for microbatch j.
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

    def message(self, tensor: ir.Tensor) -> PackedMessage:
        """Returns the layout of the message that carries ``tensor``."""
        if tensor.kind is ir.TensorKind.X:
            return self._interfaces[tensor.stage - 1][tensor.index].forward
        return self._interfaces[tensor.stage][tensor.index].backward

    def taking(self, tensor: ir.Tensor) -> Callable[[], Tensor]:
        """Returns a function that removes ``tensor`` from its cell and returns it for sending.

        The function is called when the send is posted. It returns one contiguous tensor, which may
        have an autograd graph.
        """
        message = self.message(tensor)
        if tensor.kind is ir.TensorKind.X:
            source = self._cells[tensor.stage - 1, tensor.index]
            return partial(take_output, source, message, self._device)
        source = self._cells[tensor.stage + 1, tensor.index]
        return partial(take_gradient, source, message, self._device)

    def giving(self, tensor: ir.Tensor, buffer: Tensor) -> Callable[[], None]:
        """Returns the function to call once ``tensor`` was received into ``buffer``.

        It stores views of ``buffer`` in the cell of the receiving stage, as ``inputs`` or ``dy``.
        """
        cell = self._cells[tensor.stage, tensor.index]
        parts = self.message(tensor).tensors(buffer)
        if tensor.kind is ir.TensorKind.DY:
            return partial(setattr, cell, "dy", parts)
        needs_grad = self._interfaces[tensor.stage - 1][tensor.index].needs_grad
        return partial(give_input, cell, [*zip(parts, needs_grad, strict=True)])


class WeightRouting:
    """Finds the memory of streamed weights and of D, the accumulators of their gradients.

    In the name of such a tensor, as in ``w2.5``, the number after the stage is that of the weight
    transfer in the schedule. If a rank passes on weights or a D, it sends them from the buffer into
    which they were received.
    """

    def __init__(self, store: StreamedStages, schedule: Schedule) -> None:
        self._stages = store.streamed
        self._earlier = previous(schedule.transfers)
        self._received: dict[int, Tensor] = {}  # by transfer

    def message(self, tensor: ir.Tensor) -> PackedMessage:
        """Returns the layout of the message that carries ``tensor``."""
        stage = self._stages[tensor.stage]
        gradient = tensor.kind is ir.TensorKind.GRADIENT
        return stage.gradients.message if gradient else stage.message

    def taking(self, tensor: ir.Tensor) -> Callable[[], Tensor]:
        stage, earlier = self._stages[tensor.stage], self._earlier[tensor.index]
        came = None if earlier is None else self._received[earlier]
        if tensor.kind is ir.TensorKind.GRADIENT:
            return partial(stage.gradients.leave, came)
        weights = stage.weights.flat if came is None else came
        return lambda: weights

    def giving(self, tensor: ir.Tensor, buffer: Tensor) -> Callable[[], None] | None:
        stage = self._stages[tensor.stage]
        self._received[tensor.index] = buffer
        if tensor.kind is ir.TensorKind.WEIGHT:
            return partial(stage.come, buffer)
        passed_on = tensor.index in self._earlier
        return None if passed_on else partial(stage.gradients.come_home, buffer)


Routing: TypeAlias = ActivationRouting | WeightRouting
