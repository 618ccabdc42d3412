"""Losses of the last stage's output: by a function of the caller's, or by the model itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from pipeloom.ir.errors import InputError

from ..errors import ShapeError
from ..rank.options import IN_MODEL, Loss
from ..tensors.microbatches import mapped, shown

Given: TypeAlias = tuple[Any, Mapping[str, Any]]  # a microbatch's target, the loss's arguments
Judge: TypeAlias = Callable[[Any, Any], Any]  # of an output and what was given: a loss, or and more


def judge_of(loss: Loss, master: torch.dtype | None) -> Judge:
    """The function that computes the loss of an output, with floating tensors cast to
    ``master``."""
    if isinstance(loss, str):
        return lambda output, given: loss_in(output)

    def judge(output: Any, given: Given) -> Any:
        target, options = given
        return loss(output if master is None else _in_full(output, master), target, **options)

    return judge


def loss_in(output: Any) -> Tensor:
    """The loss that the model computed. Raises ShapeError where there is none in its output."""
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


def parted(found: Any) -> tuple[Tensor, Any]:
    """Loss and metrics, None without. Raises ShapeError for anything else."""
    if _is_scalar(found):
        return found, None
    if isinstance(found, tuple) and len(found) == 2 and _is_scalar(found[0]):
        return found[0], mapped(Tensor.detach, found[1])
    raise ShapeError(
        f"loss: expected a scalar tensor, or a tuple of one and metrics, got {shown(found)}"
    )


def arguments(target: Any) -> Mapping[str, Any]:
    """The arguments of a model that computes its loss: none without a target.

    Raises InputError for a target that is no mapping.
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
