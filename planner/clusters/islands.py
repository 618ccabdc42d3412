"""Clusters by calculation: islands of fast links, such as nodes, in a slower network."""

from __future__ import annotations

from itertools import combinations, product

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.links import Groups, Link, Links
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.units import counted


def islands(ranks: int, size: int, inside: Link, between: Link) -> Profile:
    """``ranks`` ranks, each ``size`` consecutive ones joined by ``inside``, all others by
    ``between``.

    Whatever leaves an island goes over one wire, and so does whatever comes into it: a node's
    network card. Of the stages nothing is known: put a model on it
    (:meth:`..models.uniform.Transformer.on`). Raises InputError where ``size`` does not divide
    ``ranks``.
    """
    if not 1 <= size <= ranks or ranks % size:
        raise InputError(f"island: expected a divisor of the {counted(ranks, 'rank')}, got {size}")
    pairs = tuple(
        (a, b, inside) for a, b in combinations(range(ranks), 2) if a // size == b // size
    )
    nothing = StageProfile(0.0, 0.0, 0.0, 0.0, 0.0)
    return Profile((nothing,) * ranks, ranks, links=Links(between, pairs, _cards(ranks, size)))


def _cards(ranks: int, size: int) -> Groups:
    """For each island the pairs that lead out of it, and those that lead into it."""
    if size == ranks:
        return ()
    groups: list[tuple[tuple[int, int], ...]] = []
    for first in range(0, ranks, size):
        island = range(first, first + size)
        others = [rank for rank in range(ranks) if rank not in island]
        groups += [tuple(product(island, others)), tuple(product(others, island))]
    return tuple(groups)
