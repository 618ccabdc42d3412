"""A stage's arguments and results, taken apart into tensors and what is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from ..tensors.trees import mapped

Kind: TypeAlias = tuple[object, ...]  # what two calls share that one graph serves; hashable
PLACE: Any = object()
"""Stands for a tensor in the form of a value."""


def form_of(value: Any) -> Any:
    """The nested value with :data:`PLACE` for each of its tensors."""
    return mapped(lambda _: PLACE, value)


def with_tensors(form: Any, tensors: Sequence[Tensor]) -> Any:
    """The value of this form with these tensors, in their order."""
    rest = iter(tensors)
    return tree_map(lambda x: next(rest) if x is PLACE else x, form)


def kind_of(inputs: Sequence[Any], options: Mapping[str, Any]) -> Kind:
    """The kind of a call: shapes, strides and dtypes of tensors, all else as it prints, and what
    autocast is set to."""
    leaves, tree = tree_flatten((tuple(inputs), dict(options)))
    devices = {"cpu", *(x.device.type for x in leaves if isinstance(x, Tensor))}
    casts = [torch.is_autocast_enabled(x) and torch.get_autocast_dtype(x) for x in sorted(devices)]
    return (str(tree), *map(_leaf, leaves), *casts)


def _leaf(leaf: Any) -> object:
    if isinstance(leaf, Tensor):
        return (*leaf.shape, leaf.stride(), leaf.dtype, leaf.requires_grad, leaf.device)
    return repr(leaf)
