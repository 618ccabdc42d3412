"""A piece of a cut as a function compiled by Inductor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, fx

from .accumulation import AddGradient
from .cut import Piece
from .functions import Function, python_function
from .rewrites import needed
from .torch_internals.aten import value_of, views
from .torch_internals.inductor import compiled


def compiled_function(
    piece: Piece,
    module: fx.GraphModule,
    takes: Mapping[fx.Node, Sequence[AddGradient]],
    returned: Sequence[fx.Node],
) -> Function:
    """The same as :func:`~.functions.python_function`, its calls compiled together but for
    gradients that are products of what it is given: those are added as they are multiplied. Values
    are the same up to rounding."""
    products = _products(piece, takes, returned)
    if not products:
        return _compiled(piece, module, takes, returned)
    rest = {node: each for node, each in takes.items() if node not in products}
    added, others = _part(piece, products), _part(piece, [*returned, *rest])
    multiply = python_function(added, module, takes, [], products)
    run = _compiled(others, module, rest, returned)
    at = {node: i for i, node in enumerate(piece.inputs)}
    of_products, of_others = ([at[node] for node in part.inputs] for part in (added, others))

    def call(arguments: list[Tensor]) -> list[Tensor]:
        factors = [arguments[i] for i in of_products]
        given = [arguments[i] for i in of_others]
        arguments.clear()
        multiply(factors)  # first: what nothing else needs is let go of
        return run(given)

    return call


def _products(
    piece: Piece, takes: Mapping[fx.Node, Sequence[AddGradient]], returned: Sequence[fx.Node]
) -> list[fx.Node]:
    """The gradients of one parameter each that are products of two inputs or views of them."""
    return [
        node
        for node in piece.calls
        if node.target is torch.ops.aten.mm.default
        and len(takes.get(node, ())) == 1
        and node not in returned
        and not any(user in piece.calls for user in node.users)
        and all(map(views, needed(node.all_input_nodes, piece.inputs)))
    ]


def _part(piece: Piece, ends: Sequence[fx.Node]) -> Piece:
    """The part of a piece that ends in these."""
    calls = needed(ends, piece.inputs)
    used = {source for call in calls for source in call.all_input_nodes} | {*ends}
    return Piece(
        [node for node in piece.inputs if node in used],
        [node for node in piece.calls if node in calls],
        ends,
    )


def _compiled(
    piece: Piece,
    module: fx.GraphModule,
    takes: Mapping[fx.Node, Sequence[AddGradient]],
    returned: Sequence[fx.Node],
) -> Function:
    """All calls of the piece compiled together."""
    if not piece.calls:
        return python_function(piece, module, takes, returned)
    taken = [*takes]
    ends = [*returned, *taken]
    graph = _graph(piece, ends)
    run = compiled(graph, module, [value_of(node) for node in piece.inputs])
    count, strides = len(returned), [value_of(node).stride() for node in ends]
    pairs = [(i, take) for i, node in enumerate(taken, start=count) for take in takes[node]]
    shared: list[int] | None = None  # the same in all calls of what was compiled

    def call(arguments: list[Tensor]) -> list[Tensor]:
        nonlocal shared
        before = [*map(_memory, arguments)] if shared is None else []
        found = laid_out(run(arguments), strides)
        if shared is None:
            shared = _shared([*before, *map(_memory, found)], len(before) + count)
        for i in shared:
            found[count + i] = found[count + i].clone()
        for i, take in pairs:
            take(found[i])
        return found[:count]

    return call


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _shared(places: Sequence[int], start: int) -> list[int]:
    """The places from ``start`` on, counted from there, whose memory is that of one before."""
    return [i for i, place in enumerate(places[start:]) if place in places[: start + i]]


def _graph(piece: Piece, ends: Sequence[fx.Node]) -> fx.Graph:
    """The piece as a graph of its own."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in piece.inputs:
        copies[node] = graph.placeholder(node.name)
    for node in piece.calls:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in ends))
    return graph


def laid_out(tensors: Iterable[Tensor], strides: Sequence[Sequence[int]]) -> list[Tensor]:
    """The tensors with these strides: copies of those that have others."""
    return [
        x if x.stride() == stride else _strided(x, stride)
        for x, stride in zip(tensors, strides)  # noqa: B905
    ]


def _strided(x: Tensor, stride: Sequence[int]) -> Tensor:
    found = torch.empty_strided(x.shape, stride, dtype=x.dtype, device=x.device)
    return found.copy_(x)
