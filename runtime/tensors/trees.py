"""Nested values, such as batches and outputs: their tensors and their structure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from torch import Tensor
from torch.utils import _pytree

from .packed_message import Spec


def mapped(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Applies ``function`` to each tensor in dicts, lists and tuples; keeps other values."""
    if isinstance(value, Tensor):
        return function(value)
    return _pytree.tree_map(lambda x: function(x) if isinstance(x, Tensor) else x, value)


def tensors(values: Iterable[Any]) -> list[Tensor]:
    """Returns the tensors among the values, including nested ones."""
    return [x for x in _pytree.tree_leaves([*values]) if isinstance(x, Tensor)]


Form: TypeAlias = Any  # shape and dtype; text; or (path, form) of each nested value


def form(value: Any) -> Form:
    """Returns the properties that two arguments of one kind share; hashable."""
    if isinstance(value, Tensor):
        return Spec.of(value)
    found, tree = _pytree.tree_flatten_with_path(value)
    if tree.is_leaf():
        shape = getattr(value, "shape", None)  # such as a block mask, whose text is long
        return repr(value) if shape is None else f"{type(value).__name__}{list(shape)}"
    return tuple((_pytree.keystr(path), form(leaf)) for path, leaf in found)


def shown(value: Any) -> str:
    """Returns the text of a value, with shapes and dtypes in place of tensors."""
    return str(_pytree.tree_map(lambda x: Spec.of(x) if isinstance(x, Tensor) else x, value))
