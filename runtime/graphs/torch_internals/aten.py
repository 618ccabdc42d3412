"""Properties of ATen calls in a graph, and the functions that run them."""

from __future__ import annotations

import operator
import types
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, fx, nn

from .errors import TraceError

_aten = torch.ops.aten
_LIFTS = {_aten.lift_fresh_copy.default, _aten.lift_fresh.default}
_VIEWS = {_aten._unsafe_view.default, _aten._reshape_alias.default}
_BINDINGS = (types.BuiltinFunctionType, types.MethodDescriptorType)
_OTHERWISE = {"reduction", "indices"}  # arguments that the bindings take in another form

below_autograd = torch._C._AutoDispatchBelowAutograd  # a context in which autograd is disabled


def draws(node: fx.Node) -> bool:
    """Whether the node is a call that may draw random numbers, such as attention with dropout."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def value_of(node: fx.Node) -> Any:
    """Returns a fake tensor, or a tuple of them, with the shape and dtype of the node's value."""
    return node.meta.get("val")


def views(node: fx.Node) -> bool:
    """Whether the node's value shares memory with the node's first argument."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        source = node.args[0]
        return isinstance(source, fx.Node) and views(source)
    if node.target in _VIEWS:
        return True
    schema = getattr(node.target, "_schema", None)
    returns = schema.returns if schema is not None else ()
    return any(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def root_of(node: fx.Node) -> fx.Node:
    """Returns the node that allocates the memory of ``node``'s value.

    This is ``node`` itself if its value is not a view.
    """
    while views(node):
        source = node.args[0]
        assert isinstance(source, fx.Node)
        node = source
    return node


def as_output(tensor: Tensor) -> Tensor:
    """Returns an output of a traced forward as a tensor that torch does not mark as a view.

    The graph would otherwise return a view together with the tensor of which it is a view.
    """
    found: Tensor = _aten._unsafe_view.default(tensor, tensor.shape)
    return found


def direct(target: Any) -> Any:
    """Returns a Python function that calls the ATen operator ``target`` with less overhead.

    It is torch's Python binding of the operator, which parses arguments faster. Returns ``target``
    itself if there is no binding or if the binding expects the arguments in another form.
    """
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return target
    if not _OTHERWISE.isdisjoint(argument.name for argument in target._schema.arguments):
        return target
    places = (torch, torch._C._nn, torch.Tensor)
    found = [getattr(place, target._opname, None) for place in places]
    return next((x for x in found if isinstance(x, _BINDINGS)), target)


def check_constants(graph: fx.Graph, module: nn.Module, known: Iterable[Tensor]) -> None:
    """Raises TraceError if a graph contains a constant tensor that may change unnoticed.

    A constant is allowed only if it requires no gradient and, in addition, either the forward
    creates it from numbers or it is one of the ``known`` tensors. ``module``: contains the graph's
    constants.
    """
    places = {_place(x) for x in known}
    for node in graph.nodes:
        value = getattr(module, str(node.target), None) if node.op == "get_attr" else None
        if not isinstance(value, Tensor):
            continue
        what = f"it computes with a tensor of shape {[*value.shape]} that is"
        if value.requires_grad:
            raise TraceError(f"{what} no parameter of a module")
        made = all(user.target in _LIFTS for user in node.users)  # from numbers, by the forward
        if not made and _place(value) not in places:
            raise TraceError(f"{what} not of the stage's modules")


def _place(tensor: Tensor) -> tuple[object, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
