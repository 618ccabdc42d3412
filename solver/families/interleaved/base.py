"""What the families share whose stages go round the ranks: stage s on rank s mod P."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.units import counted


@dataclass(frozen=True)
class Looped:
    """``chunks``: K, stages a rank; None takes the profile's own K, or 2 where it has one a
    rank."""

    chunks: int | None = None
    parameter: str = "K"
    least: int = 1
    family: ClassVar[str]

    @property
    def name(self) -> str:
        return self.family + (f":{self.chunks}" if self.chunks else "")

    def with_parameter(self, value: int) -> Self:
        return replace(self, chunks=value)

    def problem(
        self,
        profile: Profile,
        microbatches: int,
        memory_limit: float | None,
        objective: Objective,
    ) -> Problem:
        """Cuts each stage in K where the profile has one a rank; takes K P stages as they are."""
        chunks = self.chunks or _own_chunks(profile) or 2
        if profile.num_stages == profile.ranks:
            profile = profile.split(chunks)
        if profile.num_stages != chunks * profile.ranks:
            raise InputError(
                f"{self.name}: expected a profile of {counted(profile.ranks, 'stage')} or a "
                "multiple"
                f"{f' by {chunks}' if self.chunks else ''} for {counted(profile.ranks, 'rank')}, "
                f"got {profile.num_stages}"
            )
        placement = Placement.interleaved(profile.ranks, chunks)
        limit = profile.limit_from(memory_limit)
        return Problem(profile, microbatches, placement, limit, objective)

    def supports(self, problem: Problem) -> str | None:
        ranks, placement = problem.ranks, problem.placement
        if problem.stages % ranks:
            return (
                f"needs the same number of stages on each of {counted(ranks, 'rank')}, not "
                f"{problem.stages} in all"
            )
        if placement != Placement.interleaved(ranks, problem.stages // ranks):
            return f"needs stage s on rank s mod {ranks}, not the placement {placement.name}"
        if self.chunks not in (None, problem.stages // ranks):
            return f"needs {counted(self.chunks, 'stage')} a rank, not {problem.stages // ranks}"
        return None


def _own_chunks(profile: Profile) -> int | None:
    chunks, rest = divmod(profile.num_stages, profile.ranks)
    return chunks if chunks > 1 and not rest else None
