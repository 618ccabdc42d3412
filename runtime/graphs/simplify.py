"""A joint graph without calls that change nothing, transposes of transposes and views of
views say."""

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
        _view_once(node)
        other = _same(node)
        if other is not None:
            replaced[node] = replaced.get(other, other)
            node.replace_all_uses_with(replaced[node])
    outputs = [(replaced.get(node, node), value) for node, value in joint.outputs]
    return type(joint)(joint.graph, joint.module, joint.inputs, outputs)


def _view_once(node: fx.Node) -> None:
    """Makes of a view of a view one view, and of a sum that keeps its dimensions until a view drops
    them one that does not."""
    source = node.args[0] if node.args else None
    if node.target is not _aten.view.default or not isinstance(source, fx.Node):
        return
    if source.target is _aten.view.default:
        inner = source.args[0]
        if isinstance(inner, fx.Node) and all(map(_contiguous, (node, source, inner))):
            node.update_arg(0, inner)
    elif source.target is _aten.sum.dim_IntList and len(source.users) == 1:
        _drop_dimensions(source, node)


def _drop_dimensions(total: fx.Node, view: fx.Node) -> None:
    """Sums without keeping dimensions where ``view`` has the shape and strides that gives."""
    kept, wanted = total.meta.get("val"), view.meta.get("val")
    if total.args[2:] != (True,) or not (isinstance(kept, Tensor) and isinstance(wanted, Tensor)):
        return
    summed = {dim % kept.dim() for dim in total.args[1] or range(kept.dim())}  # type: ignore[union-attr, operator]
    shape = [size for dim, size in enumerate(kept.shape) if dim not in summed]
    if list(wanted.shape) == shape and kept.is_contiguous() and wanted.is_contiguous():
        total.args = total.args[:2]
        total.meta["val"] = wanted


def _contiguous(node: fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.is_contiguous()


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
