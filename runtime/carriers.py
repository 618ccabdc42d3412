"""Where the tensors that travel come from and go to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from torch import Tensor

from pipeloom.ir import program as ir

from .compute import Cell
from .shapes import Spec


class Carrier(Protocol):
    """The tensors of one kind, looked up once while a program is prepared."""

    def spec(self, kind: ir.TensorKind, stage: int) -> Spec:
        """Shape and dtype of a receive buffer."""
        ...

    def fitting(self, tensor: ir.Tensor, buffer: Tensor) -> Tensor:
        """The part of ``buffer`` that ``tensor`` fills."""
        ...

    def taking(self, tensor: ir.Tensor) -> Callable[[], Tensor]:
        """Gives what to send, contiguous, when its send is posted."""
        ...

    def giving(self, tensor: ir.Tensor, buffer: Tensor) -> Callable[[], None]:
        """Called once ``tensor`` has come into ``buffer``."""
        ...


class Activations:
    """Stages' outputs (``x``, named by the stage that takes them) and their gradients (``dy``)."""

    def __init__(self, cells: Mapping[tuple[int, int], Cell], specs: list[Spec]) -> None:
        self._cells = cells
        self._specs = specs

    def spec(self, kind: ir.TensorKind, stage: int) -> Spec:
        return self._specs[stage - 1 if kind is ir.TensorKind.X else stage]

    def fitting(self, tensor: ir.Tensor, buffer: Tensor) -> Tensor:
        return buffer

    def taking(self, tensor: ir.Tensor) -> Callable[[], Tensor]:
        if tensor.kind is ir.TensorKind.X:
            return partial(_take_output, self._cells[tensor.stage - 1, tensor.index])
        return partial(_take_gradient, self._cells[tensor.stage + 1, tensor.index])

    def giving(self, tensor: ir.Tensor, buffer: Tensor) -> Callable[[], None]:
        cell = self._cells[tensor.stage, tensor.index]
        if tensor.kind is ir.TensorKind.X:
            return partial(give_input, cell, buffer)
        return partial(give_gradient, cell, buffer)


def _take_output(cell: Cell) -> Tensor:
    output = cell.output
    assert output is not None
    cell.output = None
    return output.contiguous()


def _take_gradient(cell: Cell) -> Tensor:
    dx = cell.dx
    assert dx is not None
    cell.dx = None
    return dx.contiguous()


def give_input(cell: Cell, x: Tensor) -> None:
    # a leaf of its own for each message: the buffer is used again and again
    cell.inputs = (x.detach().requires_grad_(),)


def give_gradient(cell: Cell, dy: Tensor) -> None:
    cell.dy = dy


def pass_output(source: Cell, target: Cell) -> None:
    """Hands F's output to the next stage on the same rank."""
    output = source.output
    assert output is not None
    source.output = None
    target.inputs = (output.requires_grad_(),)


def pass_gradient(source: Cell, target: Cell) -> None:
    """Hands B's result to the previous stage on the same rank."""
    target.dy, source.dx = source.dx, None
