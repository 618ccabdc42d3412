"""Families in which ranks form islands: weights travel inside them and activations between, or the
reverse.

Every pipeline of ranks that pass activations to each other (:mod:`...core.decomposition`) runs
1F1B, its ranks' stages one after the other as if they were one stage. Weights are fetched as ops
need them, into two buffers a rank, straight from their owners; gradients go home once an iteration,
and nobody waits for them (:mod:`...weight_passing.streaming`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from math import isqrt
from typing import Self

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.ops import Op, OpKind, pack
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.model.schedule import Schedule

from ...core.decomposition import planned
from ...weight_passing.streaming import Streaming, stream
from ..base import alternate, finished, require


@dataclass(frozen=True)
class Islands(ABC):
    """``size``: Q, the ranks of an island; None is the largest divisor of P not above its root."""

    size: int | None = None
    parameter: str = "Q"
    least: int = 1

    @property
    @abstractmethod
    def base(self) -> str:
        """The name without its parameter."""

    @abstractmethod
    def placement(self, ranks: int, size: int, stages: int) -> Placement:
        """Raises ValueError where there is none."""

    @property
    def name(self) -> str:
        return self.base if self.size is None else f"{self.base}:{self.size}"

    def with_parameter(self, value: int) -> Self:
        return replace(self, size=value)

    def problem(
        self,
        profile: Profile,
        microbatches: int,
        memory_limit: float | None,
        objective: Objective,
    ) -> Problem:
        limit = profile.limit_from(memory_limit)
        placement = self._placement(profile.ranks, profile.num_stages)
        return Problem(profile, microbatches, placement, limit, objective)

    def _placement(self, ranks: int, stages: int) -> Placement:
        try:
            return self.placement(ranks, self.size or usual_size(ranks), stages)
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

    def build(self, problem: Problem) -> Schedule:
        require(self.name, self.supports(problem))
        rows = planned(problem, one_f_one_b)
        transfers = stream(problem, [pack(row) for row in rows], Streaming())
        return finished(problem, rows, self.name, transfers)


def usual_size(ranks: int) -> int:
    """The largest divisor of ``ranks`` not above its root."""
    return next(size for size in range(isqrt(ranks), 0, -1) if ranks % size == 0)


def one_f_one_b(part: Problem) -> list[list[Op]]:
    """1F1B of one stage a rank."""
    ranks, count = part.ranks, part.microbatches
    return [alternate(rank, count, ahead=ranks - rank, backward=OpKind.BW) for rank in range(ranks)]
