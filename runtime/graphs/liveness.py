"""Bytes of the values that cross a stage's cuts: each storage once, as the ledger counts them."""

from __future__ import annotations

from torch import fx

from .cut import Cut
from .torch_internals.aten import value_of, views


def root_of(node: fx.Node) -> fx.Node:
    """The node whose memory this one's value is in."""
    while views(node):
        source = node.args[0]
        assert isinstance(source, fx.Node)
        node = source
    return node


def most_within_b(cut: Cut) -> int:
    """The most bytes held within B of a microbatch, beyond those of ``saved``: what waits for W is
    made while not all that B needs has been let go of."""
    kept = {root_of(node) for node in [*cut.saved[cut.from_w :], *cut.waiting]}
    freed = {root_of(node): node for node in cut.saved if root_of(node) not in kept}
    last = {root_of(n): call for call in cut.backward.calls for n in call.all_input_nodes}
    live = most = 0
    for call in cut.backward.calls:
        if root_of(call) is call and call in kept:
            live += _storage(call)
        most = max(most, live)
        gone = [node for root, node in freed.items() if last.get(root) is call]
        live -= sum(map(_storage, gone))
    return most


def _storage(node: fx.Node) -> int:
    size: int = value_of(node).untyped_storage().nbytes()
    return size
