"""Outputs of stages: the next stage's arguments, or the last stage's output and its loss.

The loss is computed by a function of the caller or by the model itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from pipeloom.ir.errors import InputError

from ..dtensors import PLAIN, arrived, is_dtensor
from ..errors import ShapeError
from ..rank.options import IN_MODEL, Loss
from ..tensors.trees import mapped, shown

Judge: TypeAlias = Callable[..., Any]  # (output, target, arguments) -> loss [, metrics]


def judge_of(loss: Loss | None, master: torch.dtype | None) -> Judge | None:
    """Returns the function that computes the loss of an output; None without a loss.

    It first casts floating-point outputs to ``master``, unless that is None.
    """
    if isinstance(loss, str):
        return lambda output, _: loss_in(output)
    if loss is None or master is None:
        return loss
    return lambda output, *given, **named: loss(_in_full(output, master), *given, **named)


def parted(found: Any) -> tuple[Tensor, Any]:
    """Splits a loss function's result into the loss and its metrics, or None if it has none.

    Raises ShapeError for anything but a scalar tensor or a tuple (scalar tensor, metrics).
    """
    if _is_scalar(found):
        return found, None
    if isinstance(found, tuple) and len(found) == 2 and _is_scalar(found[0]):
        return found[0], mapped(Tensor.detach, found[1])
    raise ShapeError(
        f"loss: expected a scalar tensor, or a tuple of one and metrics, got {shown(found)}"
    )


def loss_in(output: Any) -> Tensor:
    """Returns the loss that the model computed. Raises ShapeError if its output has none."""
    found: Any = output
    if isinstance(output, Mapping):
        found = output.get("loss")
    elif isinstance(output, tuple | list) and output:
        found = output[0]
    elif not isinstance(output, Tensor):
        found = getattr(output, "loss", None)
    if not _is_scalar(found):
        raise ShapeError(
            f"loss={IN_MODEL!r}: expected the last stage to return a scalar tensor, an output with "
            f"one as 'loss' or a tuple that begins with one, got {shown(output)}"
        )
    loss: Tensor = found
    return loss


def arguments(target: Any) -> Mapping[str, Any]:
    """Returns the keyword arguments of a model that computes its loss; {} without a target.

    Raises InputError if the target is not a mapping with string keys.
    """
    if target is None or (isinstance(target, Mapping) and all(isinstance(k, str) for k in target)):
        return target or {}
    raise InputError(
        f"target: expected keyword arguments of the last stage, as in {{'labels': labels}}, with "
        f"loss={IN_MODEL!r}, got {shown(target)}"
    )


def _is_scalar(found: Any) -> bool:
    return isinstance(found, Tensor) and found.dim() == 0


def _in_full(output: Any, dtype: torch.dtype) -> Any:
    return mapped(lambda x: x.to(dtype) if x.is_floating_point() else x, output)


def as_tuple(output: Any) -> tuple[Tensor, ...]:
    """Returns a stage's output as the next stage's arguments.

    Raises ShapeError if it is neither a tensor nor a list or tuple of tensors.
    """
    outputs = output if isinstance(output, tuple | list) else (output,)
    if not all(isinstance(x, Tensor) for x in outputs):
        raise ShapeError(f"expected a tensor or a tuple of tensors, got {type(output).__name__}")
    return tuple([x if type(x) in PLAIN else _handed_on(x) for x in outputs])


def _handed_on(output: Tensor) -> Tensor:
    """Returns a plain tensor that can be sent. Raises ShapeError for a DTensor."""
    if is_dtensor(output):
        raise ShapeError(
            f"expected this process's part of its output, got a DTensor ({output.placements}): a "
            "layout with use_local_output=True, to_local() or full_tensor() hands it on"
        )
    return arrived(output)
