"""Families in which ranks form islands: weights pass inside them and activations between, or the
reverse.

Every pipeline of ranks that pass activations to each other (:mod:`...core.decomposition`) runs
1F1B, its ranks' stages one after the other as if they were one stage. Weights come as ops
need them, into two buffers a rank, straight from their owners; gradients go home once an iteration,
and nobody waits for them (:mod:`...weight_passing.streaming`).
"""

from __future__ import annotations

from abc import abstractmethod
from math import isqrt

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.ops import pack, unpack
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.model.schedule import Schedule

from ...core.decomposition import planned_by_parts
from ...weight_passing.streaming import Streaming, stream
from ..base import ParametrizedFamily, finished
from ..linear.one_f_one_b import OneFOneB


class IslandFamily(ParametrizedFamily):
    """``number``: Q, the ranks of an island; None is the largest divisor of P up to its root."""

    parameter = "Q"

    @abstractmethod
    def placement(self, ranks: int, size: int, stages: int) -> Placement:
        """Raises ValueError where there is none."""

    def placed(self, profile: Profile) -> tuple[Profile, Placement]:
        return profile, self._placement(profile.ranks, profile.num_stages)

    def _placement(self, ranks: int, stages: int) -> Placement:
        try:
            return self.placement(ranks, self.number or usual_size(ranks), stages)
        except ValueError as error:
            raise InputError(f"{self.name}: {error}") from None

    def supports(self, problem: Problem) -> str | None:
        try:
            wanted = self._placement(problem.ranks, problem.stages)
        except InputError as error:
            return str(error).removeprefix(f"{self.name}: ")
        if problem.placement != wanted:
            return f"needs the placement {wanted.name}, not {problem.placement.name}"
        return None

    def schedule(self, problem: Problem) -> Schedule:
        rows = planned_by_parts(
            problem,
            lambda part: [*map(unpack, OneFOneB().rows(part.ranks, part.microbatches))],
        )
        transfers = stream(problem, [pack(row) for row in rows], Streaming())
        return finished(problem, rows, self.name, transfers)


def usual_size(ranks: int) -> int:
    """The largest divisor of ``ranks`` not above its root."""
    return next(size for size in range(isqrt(ranks), 0, -1) if ranks % size == 0)
