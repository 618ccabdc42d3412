"""The parameters of a schedule with streamed weights, and their possible values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipeloom.ir.model.problem import Problem

from .streaming import Route, Streaming


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightPassingParameters(Streaming):
    """All parameters that determine a schedule with streamed weights.

    ``rounds``, ``deep``: the parameters of the order of ops (:func:`.round_orders.rows`). The
    others are those of the transfers (:class:`.streaming.Streaming`).
    """

    buffers: int = 3
    home: Route = Route.DIRECT
    rounds: int = 1
    deep: int = 1


class WeightPassingSpace:
    """The space of the parameters of schedules for a problem.

    ``most``: the maximum number of microbatches of a rank, which is also the maximum of ``rounds``.
    """

    def __init__(self, problem: Problem) -> None:
        stages = problem.stages
        self.most = int(np.bincount(problem.owner[0]).max())  # microbatches of a rank
        self._rounds = sorted({-(-self.most // size) for size in range(1, self.most + 1)})
        self._buffers = sorted({min(n, stages) for n in _steps(stages)})

    def values(self, now: WeightPassingParameters) -> Mapping[str, Sequence[Any]]:
        """Return the possible values of each parameter, by the parameter's name.

        ``now``: the present values of all parameters, on which some of the possible values depend.
        """
        stages = self._buffers[-1]
        return {
            "rounds": self._rounds,
            "deep": sorted({1, min(now.buffers, stages), stages}),
            "buffers": self._buffers,
            "route": list(Route),
            "opening": sorted({0, *(n for n in (1, 2, 4, 8) if n <= stages)}),
            "home": list(Route),
            "collections": sorted({1, 2, now.rounds}),
            "lead": (0, 1, 2),
        }

    def any(self, rng: np.random.Generator) -> WeightPassingParameters:
        choice = WeightPassingParameters()
        for name in self.values(choice):
            values = self.values(choice)[name]
            choice = replace(choice, **{name: values[int(rng.integers(len(values)))]})
        return choice


def _steps(most: int) -> Iterator[int]:
    """Yield 1, 2, 3, 4, 6, 8, 12, 16, ..., up to the first power of 2 that is at least ``most``."""
    step = 1
    while step < most:
        yield from (step, step * 3 // 2)
        step *= 2
    yield step
