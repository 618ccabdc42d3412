"""Routes of tensors: where those that are sent come from, and where those that are received go."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from pipeloom.ir.model import program as ir

from ..tensors.stage_interface import PackedMessage, Spec, StageInterface
from .stage_runner import Cell


class TensorRouting(Protocol):
    """The tensors of one kind, looked up once while a program is prepared."""

    def spec(self, kind: ir.TensorKind, stage: int) -> Spec:
        """Shape and dtype of a receive buffer."""
        ...

    def fitting(self, tensor: ir.Tensor, buffer: Tensor) -> Tensor:
        """The part of ``buffer`` that ``tensor`` fills."""
        ...

    def taking(self, tensor: ir.Tensor) -> Callable[[], Tensor]:
        """Gives what to send, contiguous, when its send is posted; it may have a graph."""
        ...

    def giving(self, tensor: ir.Tensor, buffer: Tensor) -> Callable[[], None]:
        """Called once ``tensor`` has come into ``buffer``."""
        ...


class ActivationRouting:
    """Stages' outputs (``x``, named by the stage that takes them) and their gradients (``dy``).

    ``interfaces[s][j]``: what stage s hands on of microbatch j. A buffer is bytes, enough for the
    longest of its microbatches.
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
        count = len(self._interfaces[0])
        messages = (self._message(ir.Tensor(kind, stage, j)) for j in range(count))
        return Spec((max(message.nbytes for message in messages),), torch.uint8)

    def fitting(self, tensor: ir.Tensor, buffer: Tensor) -> Tensor:
        return self._message(tensor).place(buffer)

    def taking(self, tensor: ir.Tensor) -> Callable[[], Tensor]:
        message = self._message(tensor)
        if tensor.kind is ir.TensorKind.X:
            source = self._cells[tensor.stage - 1, tensor.index]
            return partial(_take_output, source, message, self._device)
        source = self._cells[tensor.stage + 1, tensor.index]
        return partial(_take_gradient, source, message, self._device)

    def giving(self, tensor: ir.Tensor, buffer: Tensor) -> Callable[[], None]:
        cell = self._cells[tensor.stage, tensor.index]
        parts = self._message(tensor).tensors(buffer)
        if tensor.kind is ir.TensorKind.DY:
            return partial(give_gradient, cell, parts)
        needs_grad = self._interfaces[tensor.stage - 1][tensor.index].needs_grad
        return partial(give_input, cell, [*zip(parts, needs_grad, strict=True)])

    def _message(self, tensor: ir.Tensor) -> PackedMessage:
        if tensor.kind is ir.TensorKind.X:
            return self._interfaces[tensor.stage - 1][tensor.index].forward
        return self._interfaces[tensor.stage][tensor.index].backward


def _take_output(cell: Cell, message: PackedMessage, device: torch.device) -> Tensor:
    output, cell.output = cell.output, ()
    return message.pack(output, device)


def _take_gradient(cell: Cell, message: PackedMessage, device: torch.device) -> Tensor:
    dx, cell.dx = cell.dx, ()
    return message.pack(dx, device)


def give_input(cell: Cell, parts: Sequence[tuple[Tensor, bool]]) -> None:
    """Makes received tensors F's input, each with whether it needs a gradient."""
    # leaves of their own for each message: the buffer is used again and again
    cell.inputs = tuple([_leaf(x, needs_grad) for x, needs_grad in parts])


def give_gradient(cell: Cell, dy: tuple[Tensor, ...]) -> None:
    """Makes received tensors the gradients that B starts with."""
    cell.dy = dy


def pass_output(source: Cell, target: Cell) -> None:
    """Hands F's output to the next stage on the same rank."""
    assert source.interface is not None
    pairs = zip(source.output, source.interface.needs_grad, strict=True)
    target.inputs = tuple([_leaf(x, needs_grad) for x, needs_grad in pairs])
    source.output = ()


def pass_gradient(source: Cell, target: Cell) -> None:
    """Hands B's result to the previous stage on the same rank."""
    target.dy, source.dx = source.dx, ()


def _leaf(x: Tensor, needs_grad: bool) -> Tensor:
    """A stage's argument: ``x`` without its graph; ``needs_grad``: its gradient goes back."""
    leaf = x.detach()
    leaf.requires_grad = needs_grad  # its setter: requires_grad_ looks at its arguments for longer
    return leaf
