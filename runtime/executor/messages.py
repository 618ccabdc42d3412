"""Moves the results of F and B from a cell into a message or into a neighboring stage's cell."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..tensors.packed_message import PackedMessage
from .stage_runner import Cell


def take_output(cell: Cell, message: PackedMessage, device: torch.device) -> Tensor:
    """Removes F's outputs from the cell and returns them packed as one tensor to send."""
    output, cell.output = cell.output, ()
    return message.pack(output, device)


def take_gradient(cell: Cell, message: PackedMessage, device: torch.device) -> Tensor:
    """Removes B's input gradients from the cell and returns them packed as one tensor to send."""
    dx, cell.dx = cell.dx, ()
    return message.pack(dx, device)


def give_input(cell: Cell, parts: Sequence[tuple[Tensor, bool]]) -> None:
    """Sets the cell's inputs to the tensors in ``parts``.

    ``parts``: pairs of a tensor and whether it needs a gradient.
    """
    # new leaf tensors for each message, since the receive buffer is reused
    cell.inputs = tuple([_leaf(x, needs_grad) for x, needs_grad in parts])


def pass_output(source: Cell, target: Cell) -> None:
    """Moves F's outputs to ``target``, the cell of the next stage, on the same rank."""
    assert source.interface is not None
    give_input(target, [*zip(source.output, source.interface.needs_grad, strict=True)])
    source.output = ()


def pass_gradient(source: Cell, target: Cell) -> None:
    """Moves B's input gradients to ``target``, the cell of the previous stage, on the same rank."""
    target.dy, source.dx = source.dx, ()


def _leaf(x: Tensor, needs_grad: bool) -> Tensor:
    """Returns ``x`` as a leaf tensor, detached from its graph."""
    leaf = x.detach()
    leaf.requires_grad = needs_grad  # the attribute is faster than requires_grad_()
    return leaf
