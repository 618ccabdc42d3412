"""A cluster by calculation: nodes of fast links in a slower network."""

from __future__ import annotations

from itertools import combinations, product

from pipeloom import Profile, StageProfile
from pipeloom.ir import Groups, Link, Links


def nodes(ranks: int, size: int, inside: Link, between: Link) -> Profile:
    """``ranks`` ranks in nodes of ``size`` consecutive ones, joined by ``inside``, all others by
    ``between``.

    Whatever leaves a node goes over one wire, and so does whatever comes into it: its network
    card. Of the stages nothing is known: put a model on it (:meth:`.transformer.Transformer.on`).
    """
    pairs = tuple(
        (a, b, inside) for a, b in combinations(range(ranks), 2) if a // size == b // size
    )
    nothing = StageProfile(0.0, 0.0, 0.0, 0.0, 0.0)
    return Profile((nothing,) * ranks, ranks, links=Links(between, pairs, _cards(ranks, size)))


def _cards(ranks: int, size: int) -> Groups:
    """For each node the pairs that lead out of it, and those that lead into it."""
    if size == ranks:
        return ()
    groups: list[tuple[tuple[int, int], ...]] = []
    for first in range(0, ranks, size):
        node = range(first, first + size)
        others = [rank for rank in range(ranks) if rank not in node]
        groups += [tuple(product(node, others)), tuple(product(others, node))]
    return tuple(groups)
