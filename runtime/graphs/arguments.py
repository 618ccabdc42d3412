"""A stage's arguments and results, taken apart into tensors and what is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

Kind: TypeAlias = tuple[object, ...]  # what two calls share that one graph serves; hashable


@dataclass(frozen=True, slots=True)
class Parts:
    """Nested values with tensors in them: where those are, and all else as it is."""

    leaves: tuple[Any, ...]  # None in the places of tensors
    places: tuple[int, ...]
    tree: TreeSpec

    @classmethod
    def of(cls, value: Any) -> tuple[Parts, list[Tensor]]:
        """The parts of a value, and its tensors in their order."""
        leaves, tree = tree_flatten(value)
        places = tuple(i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor))
        rest = tuple(None if isinstance(leaf, Tensor) else leaf for leaf in leaves)
        return cls(rest, places, tree), [leaves[i] for i in places]

    def with_tensors(self, tensors: Sequence[Tensor]) -> Any:
        """The value with these tensors."""
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        return tree_unflatten(leaves, self.tree)


def kind_of(inputs: Sequence[Any], options: Mapping[str, Any]) -> Kind:
    """The kind of a call: shapes, strides and dtypes of tensors, all else as it prints, and what
    autocast is set to."""
    leaves, tree = tree_flatten((tuple(inputs), dict(options)))
    return (str(tree), *map(_leaf, leaves), *_autocast(inputs))


def _leaf(leaf: Any) -> object:
    if isinstance(leaf, Tensor):
        return (*leaf.shape, leaf.stride(), leaf.dtype, leaf.requires_grad, leaf.device)
    return repr(leaf)


def _autocast(inputs: Sequence[Any]) -> Sequence[object]:
    devices = {x.device.type for x in inputs if isinstance(x, Tensor)} | {"cpu"}
    return [
        torch.get_autocast_dtype(device)
        for device in sorted(devices)
        if torch.is_autocast_enabled(device)
    ]
