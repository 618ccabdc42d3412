"""Splits a stage's arguments and results into a list of tensors and the structure around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from ..tensors.trees import mapped

Kind: TypeAlias = tuple[object, ...]  # hashable; equal for calls that can use the same graph
PLACE: Any = object()
"""Stands for a tensor in the form (:func:`form_of`) of a nested value."""


def form_of(value: Any) -> Any:
    """Returns the form of a nested value: the value with :data:`PLACE` in place of each tensor."""
    return mapped(lambda _: PLACE, value)


def with_tensors(form: Any, tensors: Sequence[Tensor]) -> Any:
    """Returns the nested value of this form that contains ``tensors``, in order."""
    rest = iter(tensors)
    return tree_map(lambda x: next(rest) if x is PLACE else x, form)


def kind_of(inputs: Sequence[Any], options: Mapping[str, Any]) -> Kind:
    """Returns the kind of a stage's call: everything in its arguments on which a graph may depend.

    This includes the shape, strides, dtype, device and ``requires_grad`` of each tensor, the text
    of each other value, and autocast's state.
    """
    leaves, tree = tree_flatten((tuple(inputs), dict(options)))
    devices = {"cpu", *(x.device.type for x in leaves if isinstance(x, Tensor))}
    casts = [torch.is_autocast_enabled(x) and torch.get_autocast_dtype(x) for x in sorted(devices)]
    return (str(tree), *map(_leaf, leaves), *casts)


def _leaf(leaf: Any) -> object:
    if isinstance(leaf, Tensor):
        return (*leaf.shape, leaf.stride(), leaf.dtype, leaf.requires_grad, leaf.device)
    return repr(leaf)
