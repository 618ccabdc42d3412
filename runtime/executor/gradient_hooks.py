"""Detects hooks on parameters' gradients.

Only autograd can call hooks, so it computes the gradients of such parameters in B.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import nn
from torch.autograd.graph import Node, get_gradient_edge


def hooked(parameter: nn.Parameter) -> bool:
    """Whether the parameter has a hook that autograd calls when it computes its gradient.

    Hooks that are called with the gradient count, and those that are called before or after the
    gradient is accumulated into ``.grad``.
    """
    return bool(
        parameter._backward_hooks
        or parameter._post_accumulate_grad_hooks
        or AccumulationHooks([parameter])
    )


class AccumulationHooks:
    """The hooks on the gradient accumulation nodes of ``parameters``.

    In a boolean context, the object is True if there is at least one such hook now. Wrappers that
    reduce gradients install such hooks. torch has no query for them, but the handle of a new hook
    refers to the dict that contains all hooks of the node.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._nodes = [get_gradient_edge(p).node for p in parameters if p.requires_grad]
        self._hooks = [hooks for node in self._nodes for hooks in _hooks_of(node)]

    def __bool__(self) -> bool:
        return any(map(len, self._hooks))


def _hooks_of(node: Node) -> list[Mapping[int, object]]:
    """Returns the two dicts in which torch stores the hooks and pre-hooks of an autograd node."""
    own = [add(lambda *_: None) for add in (node.register_hook, node.register_prehook)]
    found = [handle.hooks_dict_ref() or {} for handle in own]
    for handle in own:
        handle.remove()
    return found
