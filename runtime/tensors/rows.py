"""Splits a tensor into microbatches along dimension 0, and concatenates outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import ShapeError
from .packed_message import Spec


def cut(batch: Tensor, microbatches: int, name: str) -> Sequence[Tensor]:
    """Splits a batch into equal parts. Raises ShapeError with its ``name`` if impossible."""
    if batch.dim() == 0 or batch.shape[0] % microbatches:
        raise ShapeError(
            f"{name}: {Spec.of(batch)} cannot be cut into {microbatches} equal microbatches "
            "along dimension 0"
        )
    parts = batch.chunk(microbatches)
    # .data: each part has a version counter of its own, in case a forward modifies its input
    return parts if batch.requires_grad else [x.data for x in parts]


def merge(outputs: Sequence[Any]) -> Any:
    """Concatenates the outputs of all microbatches to one batch; scalars are stacked.

    Returns a list if they are not tensors or differ in more than the number of rows.
    """
    first = outputs[0]
    if isinstance(first, tuple):
        return tuple(merge(parts) for parts in zip(*outputs, strict=True))
    if isinstance(first, Mapping) and all(x.keys() == first.keys() for x in outputs):
        return {name: merge([x[name] for x in outputs]) for name in first}
    if not isinstance(first, Tensor) or any(x.shape[1:] != first.shape[1:] for x in outputs):
        return list(outputs)
    return torch.stack(list(outputs)) if first.dim() == 0 else torch.cat(list(outputs))
