"""Where the tensors that travel come from and go to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from pipeloom.ir.model import program as ir

from ..tensors.stage_interface import Edge, Parcel, Spec
from .stage_runner import Cell


class Carrier(Protocol):
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


class Activations:
    """Stages' outputs (``x``, named by the stage that takes them) and their gradients (``dy``).

    ``edges[s][j]``: what stage s hands on of microbatch j. A buffer is bytes, enough for the
    longest of its microbatches.
    """

    def __init__(
        self,
        cells: Mapping[tuple[int, int], Cell],
        edges: Sequence[Sequence[Edge]],
        device: torch.device,
    ) -> None:
        self._cells = cells
        self._edges = edges
        self._device = device

    def spec(self, kind: ir.TensorKind, stage: int) -> Spec:
        count = len(self._edges[0])
        parcels = (self._parcel(ir.Tensor(kind, stage, j)) for j in range(count))
        return Spec((max(parcel.nbytes for parcel in parcels),), torch.uint8)

    def fitting(self, tensor: ir.Tensor, buffer: Tensor) -> Tensor:
        return self._parcel(tensor).place(buffer)

    def taking(self, tensor: ir.Tensor) -> Callable[[], Tensor]:
        parcel = self._parcel(tensor)
        if tensor.kind is ir.TensorKind.X:
            source = self._cells[tensor.stage - 1, tensor.index]
            return partial(_take_output, source, parcel, self._device)
        source = self._cells[tensor.stage + 1, tensor.index]
        return partial(_take_gradient, source, parcel, self._device)

    def giving(self, tensor: ir.Tensor, buffer: Tensor) -> Callable[[], None]:
        cell = self._cells[tensor.stage, tensor.index]
        parts = self._parcel(tensor).tensors(buffer)
        if tensor.kind is ir.TensorKind.DY:
            return partial(give_gradient, cell, parts)
        wanted = self._edges[tensor.stage - 1][tensor.index].wanted
        return partial(give_input, cell, [*zip(parts, wanted, strict=True)])

    def _parcel(self, tensor: ir.Tensor) -> Parcel:
        if tensor.kind is ir.TensorKind.X:
            return self._edges[tensor.stage - 1][tensor.index].forward
        return self._edges[tensor.stage][tensor.index].backward


def _take_output(cell: Cell, parcel: Parcel, device: torch.device) -> Tensor:
    output, cell.output = cell.output, ()
    return parcel.message(output, device)


def _take_gradient(cell: Cell, parcel: Parcel, device: torch.device) -> Tensor:
    dx, cell.dx = cell.dx, ()
    return parcel.message(dx, device)


def give_input(cell: Cell, parts: Sequence[tuple[Tensor, bool]]) -> None:
    # leaves of their own for each message: the buffer is used again and again
    cell.inputs = tuple([_leaf(x, wants) for x, wants in parts])


def give_gradient(cell: Cell, dy: tuple[Tensor, ...]) -> None:
    cell.dy = dy


def pass_output(source: Cell, target: Cell) -> None:
    """Hands F's output to the next stage on the same rank."""
    assert source.edge is not None
    pairs = zip(source.output, source.edge.wanted, strict=True)
    target.inputs = tuple([_leaf(x, wants) for x, wants in pairs])
    source.output = ()


def pass_gradient(source: Cell, target: Cell) -> None:
    """Hands B's result to the previous stage on the same rank."""
    target.dy, source.dx = source.dx, ()


def _leaf(x: Tensor, wants: bool) -> Tensor:
    """A stage's argument: ``x`` without its graph; ``wants``: its gradient goes back."""
    leaf = x.detach()
    leaf.requires_grad = wants  # its setter: requires_grad_ looks at its arguments for longer
    return leaf
