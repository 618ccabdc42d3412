"""Splits a tensor into microbatches along dimension 0, and concatenates outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import ShapeError
from .packed_message import Spec


def cut(batch: Tensor, microbatches: int, name: str) -> Sequence[Tensor]:
    """Returns a batch split into equal microbatches along dimension 0.

    Raises ShapeError, with the batch's ``name``, if it cannot be split evenly.
    """
    if batch.dim() == 0 or batch.shape[0] % microbatches:
        raise ShapeError(
            f"{name}: {Spec.of(batch)} cannot be cut into {microbatches} equal microbatches "
            "along dimension 0"
        )
    parts = batch.chunk(microbatches)
    # .data: each part has a version counter of its own, in case a forward modifies its input
    return parts if batch.requires_grad else [x.data for x in parts]


def merge(outputs: Sequence[Any]) -> Any:
    """Returns the microbatches' outputs concatenated along dimension 0; scalars are stacked.

    Outputs that are tuples or dicts are concatenated element by element. Values that are not
    tensors, or differ in more than the size of dimension 0, are returned as a list.
    """
    first = outputs[0]
    if isinstance(first, tuple):
        return tuple(merge(parts) for parts in zip(*outputs, strict=True))
    if isinstance(first, Mapping) and all(x.keys() == first.keys() for x in outputs):
        return {name: merge([x[name] for x in outputs]) for name in first}
    if not isinstance(first, Tensor) or any(x.shape[1:] != first.shape[1:] for x in outputs):
        return list(outputs)
    return torch.stack(list(outputs)) if first.dim() == 0 else torch.cat(list(outputs))
