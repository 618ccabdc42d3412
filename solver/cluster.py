"""Clusters by calculation: islands of fast links, such as nodes, in a slower network."""

from __future__ import annotations

from itertools import combinations

from pipeloom.ir.errors import InputError
from pipeloom.ir.links import Link, Links
from pipeloom.ir.profile import Profile, StageProfile


def islands(ranks: int, size: int, inside: Link, between: Link) -> Profile:
    """``ranks`` ranks, each ``size`` consecutive ones joined by ``inside``, all others by ``between``.

    Of its one stage nothing is known: put a model on it (:meth:`.transformer.Transformer.on`).
    Raises InputError where ``size`` does not divide ``ranks``.
    """
    if not 1 <= size <= ranks or ranks % size:
        raise InputError(f"island: expected a divisor of the {ranks} ranks, got {size}")
    pairs = tuple(
        (a, b, inside) for a, b in combinations(range(ranks), 2) if a // size == b // size
    )
    nothing = StageProfile(0.0, 0.0, 0.0, 0.0, 0.0)
    return Profile((nothing,) * ranks, ranks, links=Links(between, pairs))
