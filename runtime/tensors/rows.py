"""A tensor cut into microbatches along dimension 0, and outputs put together again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import ShapeError
from .packed_message import Spec


def cut(batch: Tensor, microbatches: int, name: str) -> Sequence[Tensor]:
    """Equal parts of a batch. Raises ShapeError, with its ``name``, where there are none."""
    if batch.dim() == 0 or batch.shape[0] % microbatches:
        raise ShapeError(
            f"{name}: {Spec.of(batch)} cannot be cut into {microbatches} equal microbatches "
            "along dimension 0"
        )
    parts = batch.chunk(microbatches)
    # a part of its own version: a forward that changes its input changes no other microbatch's
    return parts if batch.requires_grad else [x.data for x in parts]


def merge(outputs: Sequence[Any]) -> Any:
    """The outputs of all microbatches as one batch; scalars are stacked.

    A list of them where they are not tensors, or differ in more than their number of rows.
    """
    first = outputs[0]
    if isinstance(first, tuple):
        return tuple(merge(parts) for parts in zip(*outputs, strict=True))
    if isinstance(first, Mapping) and all(x.keys() == first.keys() for x in outputs):
        return {name: merge([x[name] for x in outputs]) for name in first}
    if not isinstance(first, Tensor) or any(x.shape[1:] != first.shape[1:] for x in outputs):
        return list(outputs)
    return torch.stack(list(outputs)) if first.dim() == 0 else torch.cat(list(outputs))
