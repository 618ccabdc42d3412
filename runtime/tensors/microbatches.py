"""Splits whole batches into microbatches, as ``torch.distributed.pipelining`` does.

A batch is a tensor, or dicts and tuples of tensors and other values. Tensors are split along
dimension 0; other values are passed to each microbatch. A list, or a tuple of tensors (the result
of :meth:`torch.Tensor.chunk`), is taken as microbatches that are already split::

    {"ids": int64[8, 6], "scale": 0.5}          ->  4 x {"ids": int64[2, 6], "scale": 0.5}
    [{"ids": int64[2, 6]}, {"ids": int64[2, 9]}]    two microbatches as they are
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from torch import Tensor, nn
from torch.utils import _pytree

from pipeloom.ir.units import counted

from ..errors import ShapeError
from .rows import cut
from .trees import tensors

Batch: TypeAlias = Any  # see above


class OneEach(list[Any]):
    """A keyword argument that is a list of one value per microbatch, even without tensors."""


def is_cut(batch: Batch) -> bool:
    """Whether the batch is already split into microbatches."""
    if isinstance(batch, tuple):
        return bool(batch) and all(isinstance(part, Tensor) for part in batch)
    return isinstance(batch, list)


def split(batch: Batch, microbatches: int, name: str) -> Sequence[Any]:
    """Returns the microbatches of a batch, which is split into equal parts along dimension 0.

    A batch that is already split is returned unchanged. Raises ShapeError, with the batch's
    ``name``, if a tensor cannot be split evenly, or if the batch is split into another number of
    microbatches.
    """
    if not is_cut(batch):
        return _parts(batch, microbatches, name)
    if len(batch) != microbatches:
        raise ShapeError(
            f"{name}: expected {counted(microbatches, 'microbatch')}, got {len(batch)}"
        )
    parts: Sequence[Any] = batch
    return parts


def split_options(options: Mapping[str, Any], microbatches: int) -> list[dict[str, Any]]:
    """Returns the keyword arguments of each microbatch, given those of the whole batch.

    A list that contains tensors, or is a :class:`OneEach`, has one value per microbatch. Another
    list is passed to each microbatch. A tuple is always a whole batch.
    """
    cut = {name: _option(value, microbatches, name) for name, value in options.items()}
    return [{name: parts[j] for name, parts in cut.items()} for j in range(microbatches)]


def _option(value: Any, microbatches: int, name: str) -> Sequence[Any]:
    if not isinstance(value, list):
        return _parts(value, microbatches, name)
    if isinstance(value, OneEach):
        return value
    return split(value, microbatches, name) if _is_option_cut(value) else [value] * microbatches


def _is_option_cut(value: Any) -> bool:
    return isinstance(value, list) and (isinstance(value, OneEach) or bool(tensors(value)))


def _parts(batch: Any, microbatches: int, name: str) -> Sequence[Any]:
    """Returns the microbatches of a batch that is not split yet.

    Each has the same structure as the batch.
    """
    leaves, tree = _pytree.tree_flatten(batch)
    rows = [_cut(leaf, microbatches, name) for leaf in leaves]
    return [_pytree.tree_unflatten([row[j] for row in rows], tree) for j in range(microbatches)]


def _cut(leaf: Any, microbatches: int, name: str) -> Sequence[Any]:
    if isinstance(leaf, Tensor):
        return cut(leaf, microbatches, name)
    _check_plain(leaf, name)
    return [leaf] * microbatches


def _check_plain(value: object, name: str) -> None:
    """Raises ShapeError for an object with tensors in it, as these would not be split."""
    if isinstance(value, nn.Module):
        return
    held = getattr(value, "__dict__", {}).values()
    if isinstance(value, Mapping) or hasattr(value, "shape") or tensors(held):
        raise ShapeError(
            f"{name}: expected a tensor, or dicts and tuples of tensors and plain values, got "
            f"{type(value).__name__}, which is not cut into microbatches"
        )
