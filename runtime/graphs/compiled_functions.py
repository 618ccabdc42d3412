"""A piece of a cut as a function compiled by Inductor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, fx

from .cut import Piece
from .functions import Function, Take
from .torch_internals import compiled, value_of


def compiled_function(
    piece: Piece,
    module: fx.GraphModule,
    takes: Mapping[fx.Node, Sequence[Take]],
    returned: Sequence[fx.Node],
) -> Function:
    """The same as :func:`~.functions.python_function`, its calls compiled together: values are the
    same up to rounding."""
    taken = [*takes]
    ends = [*returned, *taken]
    if not piece.calls:
        return _passing(piece, returned, takes)
    graph = _graph(piece, ends)
    run = compiled(graph, module, [value_of(node) for node in piece.inputs])
    count, strides = len(returned), [value_of(node).stride() for node in ends]
    pairs = [(i, take) for i, node in enumerate(taken, start=count) for take in takes[node]]
    shared: list[int] | None = None  # the same in all calls of what was compiled

    def call(arguments: list[Tensor]) -> list[Tensor]:
        nonlocal shared
        before = [*map(_memory, arguments)] if shared is None else []
        found = [
            x if x.stride() == stride else laid_out(x, stride)
            for x, stride in zip(run(arguments), strides)  # noqa: B905
        ]
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


def _passing(
    piece: Piece, returned: Sequence[fx.Node], takes: Mapping[fx.Node, Sequence[Take]]
) -> Function:
    """A piece that computes nothing."""
    at = {node: i for i, node in enumerate(piece.inputs)}
    given = [at[node] for node in returned]
    pairs = [(at[node], take) for node, each in takes.items() for take in each]

    def call(arguments: list[Tensor]) -> list[Tensor]:
        for i, take in pairs:
            take(arguments[i])
        found = [arguments[i] for i in given]
        arguments.clear()
        return found

    return call


def laid_out(x: Tensor, stride: Sequence[int]) -> Tensor:
    """A copy with these strides."""
    found = torch.empty_strided(x.shape, stride, dtype=x.dtype, device=x.device)
    return found.copy_(x)
