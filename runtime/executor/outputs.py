"""Outputs of stages: the next stage's arguments, or the last stage's output and its loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..dtensors import PLAIN, arrived, is_dtensor
from ..errors import ShapeError
from ..rank.options import Loss
from ..tensors.trees import mapped, shown


def judge_of(loss: Loss | None, master: torch.dtype | None) -> Loss | None:
    """Returns a function like ``loss`` that first casts floating-point outputs to dtype ``master``.

    If ``master`` is None, returns ``loss`` unchanged; if ``loss`` is None, returns None.
    """
    if loss is None or master is None:
        return loss
    return lambda output, *given, **named: loss(_in_full(output, master), *given, **named)


def checked_loss(found: Any) -> Tensor:
    """Returns ``found``, the result of a loss function.

    Raises ShapeError unless it is a scalar tensor.
    """
    if isinstance(found, Tensor) and found.dim() == 0:
        return found
    raise ShapeError(f"loss: expected a scalar tensor, got {shown(found)}")


def _in_full(output: Any, dtype: torch.dtype) -> Any:
    return mapped(lambda x: x.to(dtype) if x.is_floating_point() else x, output)


def as_tuple(output: Any) -> tuple[Tensor, ...]:
    """Returns a stage's output as a tuple of plain tensors, which are the next stage's arguments.

    Raises ShapeError if it is neither a tensor nor a list or tuple of tensors, or if one of them is
    a DTensor.
    """
    outputs = output if isinstance(output, tuple | list) else (output,)
    if not all(isinstance(x, Tensor) for x in outputs):
        raise ShapeError(f"expected a tensor or a tuple of tensors, got {type(output).__name__}")
    return tuple([x if type(x) in PLAIN else _handed_on(x) for x in outputs])


def _handed_on(output: Tensor) -> Tensor:
    """Returns the output as a plain tensor, which can be sent. Raises ShapeError for a DTensor."""
    if is_dtensor(output):
        raise ShapeError(
            f"expected this process's part of its output, got a DTensor ({output.placements}): a "
            "layout with use_local_output=True, to_local() or full_tensor() hands it on"
        )
    return arrived(output)
