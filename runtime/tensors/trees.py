"""Nested values, such as batches and outputs: their tensors, and their forms."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from torch import Tensor
from torch.utils import _pytree

from .packed_message import Spec


def mapped(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """``function`` of each tensor in dicts, lists and tuples; all else as it is."""
    if isinstance(value, Tensor):
        return function(value)
    return _pytree.tree_map(lambda x: function(x) if isinstance(x, Tensor) else x, value)


def tensors(values: Iterable[Any]) -> list[Tensor]:
    """The tensors among arguments, nested ones too."""
    return [x for x in _pytree.tree_leaves([*values]) if isinstance(x, Tensor)]


Form: TypeAlias = Any  # shape and dtype; text; or (path, form) of each that is nested


def form(value: Any) -> Form:
    """The features that two arguments must share to be of one kind; hashable."""
    if isinstance(value, Tensor):
        return Spec.of(value)
    found, tree = _pytree.tree_flatten_with_path(value)
    if tree.is_leaf():
        shape = getattr(value, "shape", None)  # of a block mask, say, whose text is long
        return repr(value) if shape is None else f"{type(value).__name__}{list(shape)}"
    return tuple((_pytree.keystr(path), form(leaf)) for path, leaf in found)


def shown(value: Any) -> str:
    """Shapes and dtypes in place of tensors."""
    return str(_pytree.tree_map(lambda x: Spec.of(x) if isinstance(x, Tensor) else x, value))
