"""The base of the families whose stages loop over the ranks: stage s on rank s mod P."""

from __future__ import annotations

from dataclasses import dataclass

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.units import counted

from ..base import ParametrizedFamily


@dataclass(frozen=True)
class InterleavedFamily(ParametrizedFamily):
    """A family with K stages per rank, stage s on rank s mod P.

    ``number``: K; None means the number of stages per rank in the profile, or 2 if that is 1.
    """

    parameter = "K"

    def placed(self, profile: Profile) -> tuple[Profile, Placement]:
        """Return the profile with K P stages, and their placement.

        If the profile has one stage per rank, each is cut into K. Raises InputError if the profile
        has neither P nor K P stages.
        """
        own, rest = divmod(profile.num_stages, profile.ranks)
        chunks = self.number or (own if own > 1 and not rest else 2)
        if profile.num_stages == profile.ranks:
            profile = profile.split(chunks)
        if profile.num_stages != chunks * profile.ranks:
            by = f" by {chunks}" if self.number else ""
            raise InputError(
                f"{self.name}: expected a profile of {counted(profile.ranks, 'stage')} or a "
                f"multiple{by} for {counted(profile.ranks, 'rank')}, got {profile.num_stages}"
            )
        return profile, Placement.interleaved(profile.ranks, chunks)

    def supports(self, problem: Problem) -> str | None:
        ranks, placement = problem.ranks, problem.placement
        if problem.stages % ranks:
            return (
                f"needs the same number of stages on each of {counted(ranks, 'rank')}, not "
                f"{problem.stages} in all"
            )
        if placement != Placement.interleaved(ranks, problem.stages // ranks):
            return f"needs stage s on rank s mod {ranks}, not the placement {placement.name}"
        if self.number not in (None, problem.stages // ranks):
            return f"needs {counted(self.number, 'stage')} per rank, not {problem.stages // ranks}"
        return None
