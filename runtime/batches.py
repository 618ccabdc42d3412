"""Whole batches cut into microbatches, as ``torch.distributed.pipelining`` does."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .errors import ShapeError
from .shapes import Spec

Batch = Tensor | Sequence[Tensor]


def split(batch: Batch, microbatches: int, name: str) -> Sequence[Tensor]:
    """A whole batch in equal parts along dimension 0; a sequence of microbatches as it is.

    Raises ShapeError where it cannot be cut evenly, or microbatches differ in number or shape.
    """
    if isinstance(batch, Tensor):
        if batch.dim() == 0 or batch.shape[0] % microbatches:
            raise ShapeError(
                f"{name}: {Spec.of(batch)} cannot be cut into {microbatches} equal microbatches "
                "along dimension 0"
            )
        return batch.chunk(microbatches)
    if len(batch) != microbatches:
        raise ShapeError(f"{name}: expected {microbatches} microbatches, got {len(batch)}")
    for j, part in enumerate(batch):
        if part.shape != batch[0].shape or part.dtype is not batch[0].dtype:
            raise ShapeError(
                f"{name}: microbatch {j} is {Spec.of(part)}, microbatch 0 {Spec.of(batch[0])}"
            )
    return batch


def merge(outputs: Sequence[Tensor]) -> Tensor:
    """The outputs of all microbatches as one batch; scalars are stacked."""
    return torch.stack(list(outputs)) if outputs[0].dim() == 0 else torch.cat(list(outputs))
