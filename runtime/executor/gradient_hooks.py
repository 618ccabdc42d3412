"""Hooks on gradients, which autograd has to call: such gradients are not put off."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import nn
from torch.autograd.graph import Node, get_gradient_edge


def hooked(parameter: nn.Parameter) -> bool:
    """Whether anything is to be called with its gradient, or where autograd adds that."""
    return bool(
        parameter._backward_hooks
        or parameter._post_accumulate_grad_hooks
        or AccumulationHooks([parameter])
    )


class AccumulationHooks:
    """The hooks where autograd adds to the gradients of ``parameters``, as of wrappers that reduce
    them; false while there are none.

    torch does not tell, but what it keeps hooks in it shows to whoever adds one.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._nodes = [get_gradient_edge(p).node for p in parameters if p.requires_grad]
        self._hooks = [hooks for node in self._nodes for hooks in _hooks_of(node)]

    def __bool__(self) -> bool:
        return any(map(len, self._hooks))


def _hooks_of(node: Node) -> list[Mapping[int, object]]:
    """The dicts that torch keeps the node's hooks in."""
    own = [add(lambda *_: None) for add in (node.register_hook, node.register_prehook)]
    found = [handle.hooks_dict_ref() or {} for handle in own]
    for handle in own:
        handle.remove()
    return found
