"""A joint graph without calls that change nothing, transposes of transposes say."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, fx

if TYPE_CHECKING:
    from .joint import Joint

_aten = torch.ops.aten
_RESHAPES = {_aten.view.default, _aten._unsafe_view.default, _aten.expand.default}
_SAME = {_aten.detach.default, _aten.alias.default}


def simplify(joint: Joint) -> Joint:
    """The joint graph, changed in place, whose values are bit by bit what they were."""
    replaced: dict[fx.Node, fx.Node] = {}
    for node in joint.graph.nodes:
        other = _same(node)
        if other is not None:
            replaced[node] = replaced.get(other, other)
            node.replace_all_uses_with(replaced[node])
    outputs = [(replaced.get(node, node), value) for node, value in joint.outputs]
    return type(joint)(joint.graph, joint.module, joint.inputs, outputs)


def _same(node: fx.Node) -> fx.Node | None:
    """The node whose value this one gives again, in the same shape and strides."""
    if node.op != "call_function" or not node.args or not isinstance(node.args[0], fx.Node):
        return None
    source = node.args[0]
    if node.target in _SAME:
        return source
    if node.target in _RESHAPES and alike(node, source):
        return source
    if node.target is _aten.t.default and source.target is _aten.t.default:
        inner = source.args[0]
        return inner if isinstance(inner, fx.Node) else None
    return None


def alike(a: fx.Node, b: fx.Node) -> bool:
    """Whether two nodes give tensors of the same shape, strides and dtype."""
    one, other = a.meta.get("val"), b.meta.get("val")
    if not (isinstance(one, Tensor) and isinstance(other, Tensor)):
        return False
    return one.shape == other.shape and one.stride() == other.stride() and one.dtype == other.dtype
