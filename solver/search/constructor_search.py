"""Local search on the parameters of round-based construction, for one stage per rank.

See :mod:`..construct.round_based`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from ..construct.linear import Constructor
from ..construct.round_based import RoundParameters
from ..core.incumbent import Incumbent
from ..core.methods import Method

POOL = 8  # number of the best settings of parameters that are kept
BUILD_OP, BUILD = 10, 20_000  # work to build an order, in simulated ops: per op, and fixed

Tried: TypeAlias = tuple[float, RoundParameters]
"""A pair of parameters and the cost of the order that is built with them; the cost comes first."""


def building(ops: int) -> int:
    """Return the effort to build an order of ``ops`` ops and to time it, in simulated ops."""
    return BUILD_OP * ops + BUILD


class RoundTuner:
    """Hill climbing on the parameters of round-based construction.

    It starts from the :data:`POOL` best of ``tried``, the parameters that have been tried already.
    In each attempt it makes one to three random changes to one of these settings, and keeps the
    changed one in its place if the cost is no higher. One change moves ops on all ranks, so few
    attempts are needed even if orders are long.
    """

    def __init__(
        self, constructor: Constructor, tried: Sequence[Tried], rng: np.random.Generator
    ) -> None:
        self._constructor = constructor
        self._pool = sorted(tried, key=lambda tried: tried[0])[:POOL]
        self._rng = rng
        ops = 3 * constructor.linear.stages * constructor.linear.microbatches
        self._build = building(ops)

    @property
    def able(self) -> bool:
        return bool(self._pool)

    def round(self, best: Incumbent) -> None:
        for _ in range(max(10, int(best.slice // self._build))):
            slot = int(self._rng.integers(len(self._pool)))
            best.work.spend(self._build)
            before, parameters = self._pool[slot]
            parameters = parameters.mutated(self._constructor.linear, self._rng)
            rows = self._constructor.build(parameters)
            if rows is None:
                continue
            cost = self._constructor.cost(rows)
            if cost <= before:
                self._pool[slot] = cost, parameters
            best.offer(rows, Method.ROUNDS, cost)
            if best.over():
                return
