"""Splits a stage's arguments and results into tensors and the structure around them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from ..tensors.trees import mapped

Kind: TypeAlias = tuple[object, ...]  # equal for calls that can use the same graph; hashable
PLACE: Any = object()
"""Placeholder of a tensor in the form of a value."""


def form_of(value: Any) -> Any:
    """Returns the nested value with :data:`PLACE` in place of each tensor."""
    return mapped(lambda _: PLACE, value)


def with_tensors(form: Any, tensors: Sequence[Tensor]) -> Any:
    """Returns the value of this form that contains ``tensors``, in order."""
    rest = iter(tensors)
    return tree_map(lambda x: next(rest) if x is PLACE else x, form)


def kind_of(inputs: Sequence[Any], options: Mapping[str, Any]) -> Kind:
    """Returns the kind of a call: everything on which its graph may depend.

    These are shapes, strides and dtypes of tensors, the text of other values, and autocast's state.
    """
    leaves, tree = tree_flatten((tuple(inputs), dict(options)))
    devices = {"cpu", *(x.device.type for x in leaves if isinstance(x, Tensor))}
    casts = [torch.is_autocast_enabled(x) and torch.get_autocast_dtype(x) for x in sorted(devices)]
    return (str(tree), *map(_leaf, leaves), *casts)


def _leaf(leaf: Any) -> object:
    if isinstance(leaf, Tensor):
        return (*leaf.shape, leaf.stride(), leaf.dtype, leaf.requires_grad, leaf.device)
    return repr(leaf)
