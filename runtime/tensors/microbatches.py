"""Whole batches cut into microbatches, as ``torch.distributed.pipelining`` does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from pipeloom.ir.units import counted

from ..errors import ShapeError
from .stage_interface import Spec

Batch = Tensor | Sequence[Tensor]


def split(batch: Batch, microbatches: int, name: str) -> Sequence[Tensor]:
    """A whole batch in equal parts along dimension 0; a sequence of microbatches as it is.

    Raises ShapeError where it cannot be cut evenly, or microbatches differ in number or dtype.
    """
    if isinstance(batch, Tensor):
        if batch.dim() == 0 or batch.shape[0] % microbatches:
            raise ShapeError(
                f"{name}: {Spec.of(batch)} cannot be cut into {microbatches} equal microbatches "
                "along dimension 0"
            )
        return batch.chunk(microbatches)
    if len(batch) != microbatches:
        raise ShapeError(
            f"{name}: expected {counted(microbatches, 'microbatch')}, got {len(batch)}"
        )
    for j, part in enumerate(batch):
        if part.dim() != batch[0].dim() or part.dtype is not batch[0].dtype:
            raise ShapeError(
                f"{name}: microbatch {j} is {Spec.of(part)}, microbatch 0 {Spec.of(batch[0])}"
            )
    return batch


def split_options(options: Mapping[str, Any], microbatches: int) -> list[dict[str, Any]]:
    """Keyword arguments for each microbatch: batches are cut, all else is given to each."""
    cut = {
        name: split(value, microbatches, name)
        if isinstance(value, Tensor) or _is_batch(value)
        else [value] * microbatches
        for name, value in options.items()
    }
    return [{name: parts[j] for name, parts in cut.items()} for j in range(microbatches)]


def _is_batch(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(x, Tensor) for x in value)


def merge(outputs: Sequence[Any]) -> Any:
    """The outputs of all microbatches as one batch; scalars are stacked.

    A list of them where they are not tensors, or differ in more than their number of rows.
    """
    first = outputs[0]
    if isinstance(first, tuple):
        return tuple(merge(parts) for parts in zip(*outputs, strict=True))
    if not isinstance(first, Tensor) or any(x.shape[1:] != first.shape[1:] for x in outputs):
        return list(outputs)
    return torch.stack(list(outputs)) if first.dim() == 0 else torch.cat(list(outputs))


def mapped(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """``function`` of each tensor in a tensor, tuple, list or mapping; others as they are."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, tuple | list):
        return tuple(mapped(function, x) for x in value)
    if isinstance(value, Mapping):
        return {name: mapped(function, x) for name, x in value.items()}
    return value
