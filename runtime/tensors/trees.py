"""Nested values, such as batches and outputs: their tensors and their structure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from torch import Tensor
from torch.utils import _pytree

from .packed_message import Spec


def mapped(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Returns ``value`` with ``function`` applied to each tensor, also in dicts, lists and tuples.

    Other values are kept.
    """
    if isinstance(value, Tensor):
        return function(value)
    return _pytree.tree_map(lambda x: function(x) if isinstance(x, Tensor) else x, value)


def tensors(values: Iterable[Any]) -> list[Tensor]:
    """Returns the tensors among ``values``, including those in nested dicts, lists and tuples."""
    return [x for x in _pytree.tree_leaves([*values]) if isinstance(x, Tensor)]


Form: TypeAlias = Any  # of a tensor: its Spec; of nested values: pairs (path, form); else text


def form(value: Any) -> Form:
    """Returns a hashable description of an argument, without the values of its tensors.

    It is equal for two arguments if they have the same structure, the same shapes and dtypes of
    tensors, and the same text of other values.
    """
    if isinstance(value, Tensor):
        return Spec.of(value)
    found, tree = _pytree.tree_flatten_with_path(value)
    if tree.is_leaf():
        shape = getattr(value, "shape", None)  # such as a block mask, whose text is long
        return repr(value) if shape is None else f"{type(value).__name__}{list(shape)}"
    return tuple((_pytree.keystr(path), form(leaf)) for path, leaf in found)


def shown(value: Any) -> str:
    """Returns the text of a value, with the dtype and shape of each tensor in its place."""
    return str(_pytree.tree_map(lambda x: Spec.of(x) if isinstance(x, Tensor) else x, value))
