"""The time of a call by counting, in bytes that a device might have moved instead.

::

    time = bytes read + bytes written + operations / 64 + 64 KiB for the call itself

Counted and not measured, so that the same stage has the same levels wherever it is looked at: in
the process that profiles it, in each that runs it, and on fake tensors. The number of operations
that take as long as a byte is between a CPU's (about 10) and a GPU's (about 200): what a level
recomputes is ordered by operations for a byte freed, which that hardly changes.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from math import prod
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils.flop_counter import flop_registry

from ..torch_internals.aten import draws, value_of, views

OPERATIONS = 64  # take as long as a byte
CALL = 1 << 16  # bytes that take as long as a call without work

_aten = torch.ops.aten
_ATTENTION = flop_registry[_aten._scaled_dot_product_flash_attention]


def call_cost(node: fx.Node) -> int | None:
    """The time of computing the node once more; None where that must not be.

    What draws random numbers would draw others, collectives would have to be waited for by all
    that take part, and of other libraries' calls nobody knows what they take.
    """
    if node.op == "get_attr" or node.target is operator.getitem or views(node):
        return 0
    if draws(node) or getattr(node.target, "namespace", None) not in ("aten", "prims"):
        return None
    moved = sum(_nbytes(value_of(n)) for n in [node, *node.all_input_nodes])
    return CALL + moved + _operations(node) // OPERATIONS


def _nbytes(value: Any) -> int:
    parts = value if isinstance(value, tuple | list) else (value,)
    return sum(x.numel() * x.itemsize for x in parts if isinstance(x, Tensor))


def _operations(node: fx.Node) -> int:
    packet = getattr(node.target, "overloadpacket", None)
    count = flop_registry.get(packet)
    if count is None and "scaled_dot_product" in str(packet):
        count = _ATTENTION
    if count is not None:
        args, kwargs = fx.map_arg((node.args, node.kwargs), value_of)
        return int(count(*args, **kwargs, out_val=value_of(node)))
    if packet is getattr(_aten, "_grouped_mm", ()):
        rows, inner = _shapes(node.all_input_nodes)[0], value_of(node).shape[-1]
        return 2 * prod(rows) * int(inner)
    return 0


def _shapes(nodes: Iterable[fx.Node]) -> list[tuple[int, ...]]:
    return [tuple(value_of(node).shape) for node in nodes]
