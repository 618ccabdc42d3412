"""Calls of ATen in a graph: what they give, and what runs them."""

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
_OTHERWISE = {"reduction", "indices"}  # another default; no None in a list

below_autograd = torch._C._AutoDispatchBelowAutograd  # a context that records nothing


def draws(node: fx.Node) -> bool:
    """Whether the call may take random numbers, as attention does, for dropout."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def value_of(node: fx.Node) -> Any:
    """The shape and dtype that the node gives: a fake tensor, or a tuple of them."""
    return node.meta.get("val")


def views(node: fx.Node) -> bool:
    """Whether the node gives tensors that share the memory of its first argument."""
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
    """The node whose memory this one's value is in."""
    while views(node):
        source = node.args[0]
        assert isinstance(source, fx.Node)
        node = source
    return node


def as_output(tensor: Tensor) -> Tensor:
    """An output of a computation that is to be traced, by itself: one that is a view of something
    else would be handed out as that."""
    found: Tensor = _aten._unsafe_view.default(tensor, tensor.shape)
    return found


def direct(target: Any) -> Any:
    """The function of torch's Python bindings that runs the same call of ATen, as it reads its
    arguments faster; ``target`` itself where there is none, or one that reads them otherwise."""
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return target
    if not _OTHERWISE.isdisjoint(argument.name for argument in target._schema.arguments):
        return target
    places = (torch, torch._C._nn, torch.Tensor)
    found = [getattr(place, target._opname, None) for place in places]
    return next((x for x in found if isinstance(x, _BINDINGS)), target)


def check_constants(graph: fx.Graph, module: nn.Module, known: Iterable[Tensor]) -> None:
    """Raises TraceError where a graph holds tensors that its forward did not make, other than
    those ``known``, or any that needs a gradient: nothing would tell when they change."""
    places = {_place(x) for x in known}
    for node in graph.nodes:
        value = getattr(module, str(node.target), None) if node.op == "get_attr" else None
        if not isinstance(value, Tensor):
            continue
        what = f"it computes with a tensor of shape {[*value.shape]} that is"
        if value.requires_grad:
            raise TraceError(f"{what} no parameter of a module")
        made = all(user.target in _LIFTS for user in node.users)  # of numbers, by the forward
        if not made and _place(value) not in places:
            raise TraceError(f"{what} not of the stage's modules")


def _place(tensor: Tensor) -> tuple[object, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
