"""The pieces of a cut as functions: graphs of ATen calls whose Python code torch.fx writes, or that
Inductor compiles.

::

    def forward(self, args_list):
        ...
        mm_2 = torch.mm(t_5, view_9);  t_5 = view_9 = None
        add_gradient_0 = self.add_gradient_0(mm_2);  mm_2 = add_gradient_0 = None
        ...

A gradient is added as soon as it is there. A value is let go of after its last use: the caller's
list is emptied, so that nothing else holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx, nn
from torch.fx.graph import _BoxedCodeGen

from ..dtensors import is_dtensor, like, local
from ..executor.deferred_linear import add, add_product
from .cut import Piece
from .rewrites import needed
from .torch_internals.aten import direct, value_of, views
from .torch_internals.inductor import compiled

Function: TypeAlias = Callable[[list[Tensor]], list[Tensor]]
Adds: TypeAlias = Mapping[fx.Node, Sequence[nn.Parameter]]  # whose gradients the nodes are


def add_gradient(parameter: nn.Parameter, gradient: Tensor) -> None:
    """Adds a gradient to its parameter's, as autograd does; the first one is copied, as its memory
    may be another tensor's, too."""
    grad = parameter.grad
    if type(grad) is Tensor:
        grad.add_(gradient)
        return
    if grad is None:
        place = torch.empty_like(local(parameter), dtype=gradient.dtype, requires_grad=False)
        gradient = place.copy_(gradient)
    add(parameter, like(parameter, gradient))


def python_function(piece: Piece, module: fx.GraphModule, adds: Adds) -> Function:
    """The function of a piece: it takes the piece's inputs in a list, which it empties, and returns
    what the piece ``returned``; it ``adds`` its gradients to those of the parameters."""
    found = graph_of(piece, module, adds)
    for node in found.graph.nodes:
        if node.op == "call_function":
            node.target = direct(node.target)
    found.graph.set_codegen(_BoxedCodeGen())
    found.recompile()
    function: Function = found.forward
    return function


def graph_of(
    piece: Piece, module: fx.GraphModule, adds: Adds = MappingProxyType({})
) -> fx.GraphModule:
    """A piece as a module of its own, with the constants of ``module``."""
    graph, held = fx.Graph(), dict[str, Any]()
    copies: dict[fx.Node, fx.Node] = {}
    for i, node in enumerate([*piece.inputs, *piece.calls]):
        if i < len(piece.inputs):
            copies[node] = graph.placeholder(node.name)
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        if node.op == "get_attr":
            held[str(node.target)] = attrgetter(str(node.target))(module)
        for parameter in adds.get(node, ()):
            name = f"add_gradient_{len(held)}"
            held[name] = partial(add_gradient, parameter)
            graph.call_module(name, (copies[node],))
    graph.output([copies[node] for node in piece.returned])
    return fx.GraphModule(held, graph)


def compiled_function(piece: Piece, module: fx.GraphModule, adds: Adds) -> Function:
    """The same as :func:`python_function`, its calls compiled together. Values are the
    same up to rounding.

    Gradients that are products of what the piece is given are added as they are multiplied: the
    compiled function returns their factors.
    """
    if not piece.calls:
        return python_function(piece, module, adds)
    products = _products(piece, adds)
    added = [node for node in adds if node not in products]
    factors: list[Any] = [factor for node in products for factor in node.args]
    calls = [node for node in piece.calls if node not in products]
    rest = Piece(piece.inputs, calls, [*piece.returned, *added, *factors])
    run = compiled(graph_of(rest, module), [value_of(node) for node in piece.inputs])
    strides = [value_of(node).stride() for node in piece.returned]
    start, end = len(piece.returned), len(piece.returned) + len(added)
    pairs = [(i, parameter) for i, node in enumerate(added, start) for parameter in adds[node]]
    triples = [(end + 2 * i, adds[node][0]) for i, node in enumerate(products)]

    def call(arguments: list[Tensor]) -> list[Tensor]:
        found = run(arguments)
        for i, parameter in pairs:
            add_gradient(parameter, found[i])
        for i, parameter in triples:
            add_product(parameter, found[i], found[i + 1])
        return laid_out(found[:start], strides)

    return call


def _products(piece: Piece, adds: Adds) -> list[fx.Node]:
    """The gradients of one parameter each that are products of two inputs or views of them."""
    return [
        node
        for node in piece.calls
        if node.target is torch.ops.aten.mm.default
        and len(adds.get(node, ())) == 1
        and not is_dtensor(adds[node][0])
        and node not in piece.returned
        and not any(user in piece.calls for user in node.users)
        and all(map(views, needed(node.all_input_nodes, {*piece.inputs})))
    ]


def laid_out(tensors: Iterable[Tensor], strides: Sequence[Sequence[int]]) -> list[Tensor]:
    """The tensors with these strides: copies of those that have others."""
    return [
        x if x.stride() == stride else x.new_empty_strided(x.shape, stride).copy_(x)
        for x, stride in zip(tensors, strides)  # noqa: B905
    ]
