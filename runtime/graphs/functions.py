"""Turns the pieces of a cut into functions: Python code from torch.fx, or compiled by Inductor.

::

    def forward(self, args_list):
        ...
        mm_2 = torch.mm(t_5, view_9);  t_5 = view_9 = None
        add_gradient_0 = self.add_gradient_0(mm_2);  mm_2 = add_gradient_0 = None
        ...

A gradient is added as soon as it is computed. A value is dropped after its last use: the caller's
list of arguments is emptied, so that nothing else refers to it.
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

from ..dtensors import is_dtensor, local, whole
from ..executor.deferred_linear import add, add_product
from .cut import Piece
from .rewrites import needed
from .torch_internals.aten import direct, value_of, views
from .torch_internals.inductor import compiled

Function: TypeAlias = Callable[[list[Tensor]], list[Tensor]]  # empties the list of its arguments
Adds: TypeAlias = Mapping[fx.Node, Sequence[nn.Parameter]]  # gradient -> parameters to add it to


def add_gradient(parameter: nn.Parameter, gradient: Tensor) -> None:
    """Adds a gradient (its local part) to the parameter's ``.grad``, as autograd does.

    The first gradient of a parameter is copied, as it may share memory with another tensor.
    """
    grad = parameter.grad
    if type(grad) is Tensor:
        grad.add_(gradient)
        return
    if grad is None:
        place = torch.empty_like(local(parameter), dtype=gradient.dtype, requires_grad=False)
        gradient = place.copy_(gradient)
    add(parameter, whole(parameter, gradient))


def python_function(piece: Piece, module: fx.GraphModule, adds: Adds) -> Function:
    """Returns the function that runs a piece as Python code.

    The function takes the piece's inputs as a list, which it empties, and returns the results as a
    list. It also adds the gradients in ``adds`` to ``.grad`` of their parameters. ``module``
    contains the graph's constants.
    """
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
    """Returns a piece as a module of its own, with the constants of ``module`` that it uses.

    After each node in ``adds``, the new module calls :func:`add_gradient` for each parameter to
    which ``adds`` maps the node.
    """
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
    """Same as :func:`python_function`, but compiled; results may differ by rounding.

    Matrix products of inputs that are gradients (see :func:`_products`) are not compiled: one
    operation multiplies the factors and adds the product to ``.grad``.
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
    """Returns those gradients in ``adds`` that are matrix products of inputs of the piece.

    The factors may also be views of inputs. Gradients that are used for several parameters, in
    further calls or as results are left out, as are those of DTensor parameters.
    """
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
    """Returns the tensors with the given strides; those that have other strides are copied.

    ``strides``: for each tensor, the strides of the result.
    """
    return [
        x if x.stride() == stride else x.new_empty_strided(x.shape, stride).copy_(x)
        for x, stride in zip(tensors, strides)  # noqa: B905
    ]
