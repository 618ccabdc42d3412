"""Joint graphs written anew, so that what they give is the same and the cut is a better one."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import fx

from .joint import UPDATES, Joint, Role
from .torch_internals import draws, region_of

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


def recompute_regions(joint: Joint) -> None:
    """Computes what the model checkpoints again in the backward, right before it is needed there,
    from what came into the checkpointed region; random numbers are kept."""
    backward = _backward(joint)
    copies: dict[fx.Node, fx.Node] = {}
    for node in list(joint.graph.nodes):
        if node not in backward or node.op == "output":
            continue
        with joint.graph.inserting_before(node):
            for source in node.all_input_nodes:
                copy = _again(joint.graph, source, copies)
                if copy is not source:
                    node.replace_input_with(source, copy)


def _again(graph: fx.Graph, node: fx.Node, copies: dict[fx.Node, fx.Node]) -> fx.Node:
    """The node once more, with all that it needs of its region; one of no region itself."""
    if region_of(node) is None or draws(node) or node.op != "call_function":
        return node
    if _drawn(node):
        return node
    if node not in copies:
        for source in node.all_input_nodes:
            _again(graph, source, copies)
        copy = graph.node_copy(node, lambda source: copies.get(source, source))
        copies[node] = copy
    return copies[node]


def _drawn(node: fx.Node) -> bool:
    """Whether the node is a part of what a call that draws random numbers gives."""
    return any(draws(source) for source in node.all_input_nodes) and len(node.all_input_nodes) == 1


def _backward(joint: Joint) -> set[fx.Node]:
    return reached(n for n, v in joint.inputs.items() if v.role is Role.TANGENT)


def reached(starts: Iterable[fx.Node]) -> set[fx.Node]:
    """The nodes that depend on ``starts``."""
    found: set[fx.Node] = set()
    stack = [*starts]
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(node.users)
    return found
