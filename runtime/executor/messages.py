"""Results of F and B: taken out of a cell, sent, and given to the next stage's cell."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..tensors.packed_message import PackedMessage
from .stage_runner import Cell


def take_output(cell: Cell, message: PackedMessage, device: torch.device) -> Tensor:
    """F's output as the message to send, which the cell lets go of."""
    output, cell.output = cell.output, ()
    return message.pack(output, device)


def take_gradient(cell: Cell, message: PackedMessage, device: torch.device) -> Tensor:
    """B's result as the message to send, which the cell lets go of."""
    dx, cell.dx = cell.dx, ()
    return message.pack(dx, device)


def give_input(cell: Cell, parts: Sequence[tuple[Tensor, bool]]) -> None:
    """Makes tensors F's input, each with whether it needs a gradient."""
    # leaves of their own for each message: the buffer is used again and again
    cell.inputs = tuple([_leaf(x, needs_grad) for x, needs_grad in parts])


def pass_output(source: Cell, target: Cell) -> None:
    """Hands F's output to the next stage on the same rank."""
    assert source.interface is not None
    give_input(target, [*zip(source.output, source.interface.needs_grad, strict=True)])
    source.output = ()


def pass_gradient(source: Cell, target: Cell) -> None:
    """Hands B's result to the previous stage on the same rank."""
    target.dy, source.dx = source.dx, ()


def _leaf(x: Tensor, needs_grad: bool) -> Tensor:
    """A stage's argument: ``x`` without its graph; ``needs_grad``: its gradient goes back."""
    leaf = x.detach()
    leaf.requires_grad = needs_grad  # its setter: requires_grad_ looks at its arguments for longer
    return leaf
