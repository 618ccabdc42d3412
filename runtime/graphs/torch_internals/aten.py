"""Calls of ATen in a graph: what they give, and what runs them."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, fx, nn

from .errors import TraceError


def draws(node: fx.Node) -> bool:
    """Whether the call takes random numbers."""
    tags = getattr(node.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags and not _certain(node)


def _certain(node: fx.Node) -> bool:
    """Whether the call is of attention without dropout, which draws nothing although it might."""
    schema = getattr(node.target, "_schema", None)
    for i, argument in enumerate(schema.arguments if schema is not None else ()):
        if argument.name == "dropout_p":
            given = node.args[i] if i < len(node.args) else node.kwargs.get("dropout_p", 0.0)
            return bool(given == 0.0)
    return False


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


_aten = torch.ops.aten
_LIFTS = {_aten.lift_fresh_copy.default, _aten.lift_fresh.default}
_VIEWS = {_aten._unsafe_view.default, _aten._reshape_alias.default}


below_autograd = torch._C._AutoDispatchBelowAutograd  # a context that records nothing


def as_output(tensor: Tensor) -> Tensor:
    """An output of a computation that is to be traced, by itself: one that is a view of something
    else would be handed out as that."""
    found: Tensor = _aten._unsafe_view.default(tensor, tensor.shape)
    return found


_DIRECT: dict[Any, Any] = {  # the same kernels by torch's own bindings, which parse faster
    _aten.mm.default: torch.mm,
    _aten.bmm.default: torch.bmm,
    _aten.addmm.default: torch.addmm,
    _aten.add.Tensor: torch.add,
    _aten.sub.Tensor: torch.sub,
    _aten.mul.Tensor: torch.mul,
    _aten.div.Tensor: torch.div,
    _aten.neg.default: torch.neg,
    _aten.rsqrt.default: torch.rsqrt,
    _aten.cat.default: torch.cat,
    _aten.t.default: torch.t,
    _aten.view.default: torch.Tensor.view,
    _aten.expand.default: torch.Tensor.expand,
    _aten.permute.default: torch.permute,
    _aten.transpose.int: torch.transpose,
    _aten.sum.dim_IntList: torch.sum,
    _aten.mean.dim: torch.mean,
    _aten.native_layer_norm.default: torch.native_layer_norm,
    _aten.gelu.default: torch._C._nn.gelu,
    _aten.silu.default: torch._C._nn.silu,
}


def direct(target: Any) -> Any:
    """The function that an ATen call runs, with as little of Python between as can be."""
    if target in _DIRECT:
        return _DIRECT[target]
    return target._op if isinstance(target, torch._ops.OpOverload) else target


def check_constants(graph: fx.Graph, module: nn.Module, known: Iterable[Tensor]) -> None:
    """Raises TraceError where a graph holds tensors that its forward did not make, other than
    those ``known``, or any that needs a gradient: nothing would tell when they change."""
    places = {_place(x) for x in known}
    for node in graph.nodes:
        value = getattr(module, str(node.target), None) if node.op == "get_attr" else None
        if not isinstance(value, Tensor):
            continue
        if value.requires_grad:
            raise TraceError(f"it computes with {_told(value)} that is no parameter of a module")
        if not _made(node) and _place(value) not in places:
            raise TraceError(f"it computes with {_told(value)} that is not of the stage's modules")


def _made(node: fx.Node) -> bool:
    """Whether a constant stands where the forward makes a tensor of numbers."""
    return all(user.target in _LIFTS for user in node.users)


def _told(tensor: Tensor) -> str:
    return f"a tensor of shape {[*tensor.shape]}"


def _place(tensor: Tensor) -> tuple[object, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
