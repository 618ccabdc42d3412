"""A piece of a cut as a Python function of ATen calls, as they stand in the graph.

::

    def piece(arguments):
        primals_3, tangents_1 = arguments
        arguments.clear()
        t_5 = c0(tangents_1)
        mm_2 = c1(t_5, view_9)
        del t_5, view_9
        a0(mm_2)                  a gradient is added as soon as it is there
        ...

A value is let go of after its last use: the caller's list is emptied, so that nothing else holds
it.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx

from .accumulation import AddGradient
from .cut import Piece
from .torch_internals.aten import direct

Function: TypeAlias = Callable[[list[Tensor]], list[Tensor]]


def python_function(
    piece: Piece,
    module: fx.GraphModule,
    takes: Mapping[fx.Node, Sequence[AddGradient]],
    returned: Sequence[fx.Node],
    products: Collection[fx.Node] = (),
) -> Function:
    """The function of a piece: of its inputs, in their order, in a list that it empties, to those
    of its outputs that are ``returned``; others it gives to ``takes``, which compute the
    ``products`` themselves."""
    writer = _Writer(module, products)
    lines = writer.lines(piece, takes, returned)
    text = "def piece(arguments):\n" + "".join(f"    {line}\n" for line in lines)
    exec(compile(text, f"<{len(piece.calls)} calls of ATen>", "exec"), writer.names)
    function: Function = writer.names["piece"]
    return function


class _Writer:
    """Lines of Python, and the objects that they name."""

    def __init__(self, module: fx.GraphModule, products: Collection[fx.Node]) -> None:
        self.names: dict[str, Any] = {}
        self._module, self._products = module, products
        self._bound: dict[int, str] = {}

    def lines(
        self,
        piece: Piece,
        takes: Mapping[fx.Node, Sequence[AddGradient]],
        returned: Sequence[fx.Node],
    ) -> list[str]:
        last = _last_uses(piece, {*returned})
        inputs = [node.name for node in piece.inputs]
        lines = [f"{', '.join(inputs)}, = arguments"] if inputs else []
        lines.append("arguments.clear()")
        lines += self._taken(piece.inputs, takes)
        lines += _dropped(last.get(None, ()))
        for node in piece.calls:
            if node in self._products:
                (take,) = takes[node]
                factors = ", ".join(map(self._text, node.args))
                lines.append(f"{self._bind(take)}.product({factors})")
            else:
                lines.append(f"{node.name} = {self._call(node)}")
                lines += self._taken([node], takes)
            lines += _dropped([n for n in last.get(node, ()) if n not in self._products])
        return [*lines, f"return [{', '.join(node.name for node in returned)}]"]

    def _taken(
        self, nodes: Sequence[fx.Node], takes: Mapping[fx.Node, Sequence[AddGradient]]
    ) -> list[str]:
        return [
            f"{self._bind(take)}({node.name})" for node in nodes for take in takes.get(node, ())
        ]

    def _call(self, node: fx.Node) -> str:
        if node.op == "get_attr":
            return self._bind(_attribute(self._module, str(node.target)))
        assert node.op == "call_function", node.op
        if node.target is operator.getitem:
            return f"{self._text(node.args[0])}[{self._text(node.args[1])}]"
        given = [self._text(x) for x in node.args]
        given += [f"{name}={self._text(x)}" for name, x in node.kwargs.items()]
        return f"{self._bind(direct(node.target))}({', '.join(given)})"

    def _text(self, value: Any) -> str:
        match value:
            case fx.Node():
                return value.name
            case list():
                return f"[{', '.join(map(self._text, value))}]"
            case tuple():
                return f"({''.join(f'{self._text(x)}, ' for x in value)})"
            case None | bool() | int() | str():
                return repr(value)
            case float() if math.isfinite(value):
                return repr(value)
        return self._bind(value)

    def _bind(self, value: Any) -> str:
        name = self._bound.setdefault(id(value), f"c{len(self._bound)}")
        self.names[name] = value
        return name


def _last_uses(piece: Piece, returned: Collection[fx.Node]) -> dict[fx.Node | None, list[fx.Node]]:
    """The values that nothing needs after each call; for None those that nothing needs at all."""
    last: dict[fx.Node, fx.Node | None] = dict.fromkeys(piece.inputs)
    for call in piece.calls:
        last[call] = call
        for node in call.all_input_nodes:
            last[node] = call
    found: dict[fx.Node | None, list[fx.Node]] = {}
    for node, user in last.items():
        if node not in returned:
            found.setdefault(user, []).append(node)
    return found


def _dropped(nodes: Sequence[fx.Node]) -> list[str]:
    return [f"del {', '.join(node.name for node in nodes)}"] if nodes else []


def _attribute(module: fx.GraphModule, path: str) -> Any:
    found: Any = module
    for name in path.split("."):
        found = getattr(found, name)
    return found.detach() if isinstance(found, torch.nn.Parameter) else found
