"""Joint graphs written anew, so that what they give is the same and the cut is a better one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import torch
from torch import fx

from .joint import UPDATES, Joint, Role
from .simplify import alike

_aten = torch.ops.aten


def split_convolutions(joint: Joint) -> None:
    """Convolutions' backward in two calls, of which one gives the weight's and bias's gradients."""
    for node in list(joint.graph.nodes):
        if node.target is not _aten.convolution_backward.default:
            continue
        mask = node.args[-1]
        assert isinstance(mask, list)
        if not (mask[0] and any(mask[1:])):
            continue
        with joint.graph.inserting_before(node):
            weights = joint.graph.node_copy(node)
        weights.args = (*node.args[:-1], [False, *mask[1:]])
        node.args = (*node.args[:-1], [True, False, False])
        for part in list(node.users):
            if part.args[1] != 0:
                part.replace_input_with(node, weights)


def copy_updated(joint: Joint) -> None:
    """Inputs and buffers that F gives new values, as the backward needs them: as they were."""
    updated = {
        (Role.BUFFER if v.role is Role.BUFFER_UPDATE else Role.INPUT, v.key)
        for _, v in joint.of(*UPDATES)
    }
    backward = _backward(joint)
    first = next(n for n in joint.graph.nodes if n.op != "placeholder")
    for node, value in joint.inputs.items():
        users = [n for n in node.users if n in backward]
        if (value.role, value.key) in updated and users:
            with joint.graph.inserting_before(first):
                copied = joint.graph.call_function(_aten.clone.default, (node,))
            copied.meta["val"] = node.meta["val"]
            for user in users:
                user.replace_input_with(node, copied)


def without_tangents(
    joint: Joint, used: Collection[int]
) -> tuple[Joint, Mapping[fx.Node, fx.Node]]:
    """A copy of the joint graph where only outputs at the places ``used`` have a gradient, and of
    each of its nodes the one that it is a copy of.

    What depends on the gradients of others alone is zero, as a backward is linear in them: it is
    added to nothing, and parameters of which it is the gradient have none.
    """
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    graph.graph_copy(joint.graph, copies)
    inputs = {copies[node]: value for node, value in joint.inputs.items()}
    tangents = {node: value.key for node, value in inputs.items() if value.role is Role.TANGENT}
    live = reached(node for node, key in tangents.items() if key in used)
    zero = reached(node for node, key in tangents.items() if key not in used) - live
    replaced = _sums_without(graph, zero)
    ends = [(replaced.get(copies[n], copies[n]), v) for n, v in joint.outputs]
    outputs = [(node, value) for node, value in ends if node not in zero]
    sources = needed(node for node, _ in outputs)
    kept = {n: v for n, v in inputs.items() if n not in tangents or n in live or n in sources}
    return Joint(graph, joint.module, kept, outputs), {copy: n for n, copy in copies.items()}


def _sums_without(graph: fx.Graph, zero: Collection[fx.Node]) -> dict[fx.Node, fx.Node]:
    """Puts in the place of each sum with what is zero the other addend; what took its place."""
    replaced: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if node.target is not _aten.add.Tensor or node in zero or node.kwargs:
            continue
        rest = [x for x in node.args if isinstance(x, fx.Node) and x not in zero]
        if len(rest) == 1 and len(node.all_input_nodes) == 2 and alike(node, rest[0]):
            replaced[node] = replaced.get(rest[0], rest[0])
            node.replace_all_uses_with(replaced[node])
    return replaced


def _backward(joint: Joint) -> set[fx.Node]:
    return reached(n for n, v in joint.inputs.items() if v.role is Role.TANGENT)


def reached(starts: Iterable[fx.Node]) -> set[fx.Node]:
    """The nodes that depend on ``starts``, themselves included."""
    return _walked(starts, lambda node: node.users)


def needed(ends: Iterable[fx.Node], known: Collection[fx.Node] = ()) -> set[fx.Node]:
    """The nodes that ``ends`` depend on, themselves included, up to those ``known``."""
    return _walked(ends, lambda node: node.all_input_nodes, known)


def _walked(
    starts: Iterable[fx.Node],
    following: Callable[[fx.Node], Iterable[fx.Node]],
    known: Collection[fx.Node] = (),
) -> set[fx.Node]:
    known = known if isinstance(known, set) else set(known)
    found: set[fx.Node] = set()
    stack = [*starts]
    while stack:
        node = stack.pop()
        if node not in found and node not in known:
            found.add(node)
            stack.extend(following(node))
    return found
