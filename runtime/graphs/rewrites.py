"""Rewrites joint graphs so that they can be cut better; the results stay the same."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set
from dataclasses import replace

import torch
from torch import fx

from .joint import Joint, Role

_aten = torch.ops.aten
_SAME = {_aten.detach.default, _aten.alias.default}


def simplify(joint: Joint) -> Joint:
    """Returns ``joint`` without calls that have no effect and without double transposes.

    Its graph is changed in place. All values stay bitwise equal.
    """
    replaced: dict[fx.Node, fx.Node] = {}
    for node in joint.graph.nodes:
        other = _same(node)
        if other is not None:
            replaced[node] = replaced.get(other, other)
            node.replace_all_uses_with(replaced[node])
    outputs = [(replaced.get(node, node), value) for node, value in joint.outputs]
    return replace(joint, outputs=outputs)


def _same(node: fx.Node) -> fx.Node | None:
    """Returns an earlier node whose value equals that of ``node``, or None if there is none.

    Values, shape and strides are equal.
    """
    source = node.args[0] if node.args else None
    if isinstance(source, fx.Node) and node.target is source.target is _aten.t.default:
        source = source.args[0]
    elif node.target not in _SAME:
        return None
    return source if isinstance(source, fx.Node) else None


def split_convolutions(joint: Joint) -> None:
    """Splits the backward call of each convolution into two calls.

    One computes the gradient of the input, the other one the gradients of weight and bias.
    """
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
    """Makes F copy each buffer that it updates and whose previous value the backward needs."""
    updated = {value.key for _, value in joint.of(Role.BUFFER_UPDATE)}
    backward = reached(n for n, v in joint.inputs.items() if v.role is Role.TANGENT)
    first = next(n for n in joint.graph.nodes if n.op != "placeholder")
    for node, value in joint.inputs.items():
        users = [n for n in node.users if n in backward]
        if value.role is Role.BUFFER and value.key in updated and users:
            with joint.graph.inserting_before(first):
                copied = joint.graph.call_function(_aten.clone.default, (node,))
            copied.meta["val"] = node.meta["val"]
            for user in users:
                user.replace_input_with(node, copied)


def name_generators(joint: Joint) -> None:
    """Replaces random generators in arguments of calls by attributes of ``joint.module``."""
    for node in list(joint.graph.nodes):
        generator = node.kwargs.get("generator")
        if isinstance(generator, torch.Generator):
            name = f"generator_of_{node.name}"
            setattr(joint.module, name, generator)
            with joint.graph.inserting_before(node):
                node.update_kwarg("generator", joint.graph.get_attr(name))


def reached(starts: Iterable[fx.Node]) -> set[fx.Node]:
    """Returns ``starts`` and all nodes that depend on them, directly or indirectly."""
    return _walked(starts, lambda node: node.users)


def needed(ends: Iterable[fx.Node], known: Set[fx.Node] = frozenset()) -> set[fx.Node]:
    """Returns ``ends`` and all nodes on which they depend, directly or indirectly.

    Nodes in ``known``, and nodes on which only these depend, are left out.
    """
    return _walked(ends, lambda node: node.all_input_nodes, known)


def _walked(
    starts: Iterable[fx.Node],
    following: Callable[[fx.Node], Iterable[fx.Node]],
    known: Set[fx.Node] = frozenset(),
) -> set[fx.Node]:
    found: set[fx.Node] = set()
    stack = [*starts]
    while stack:
        node = stack.pop()
        if node not in found and node not in known:
            found.add(node)
            stack.extend(following(node))
    return found
