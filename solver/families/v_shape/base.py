"""The base of the families whose stages go down the ranks and back up, once or several times."""

from __future__ import annotations

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.units import counted

from ..base import Family


class VShapeFamily(Family):
    """A family whose stages go down the ranks and back up, once or several times (*waves*).

    There are 2 x waves stages per rank: stages 0..P-1 are on ranks 0..P-1, the next P on ranks
    P-1..0, and so on.
    """

    def waves(self, stages: int, ranks: int) -> int:
        """Return the number of waves: how many times the stages go down the ranks and back up.

        ``stages``, ``ranks``: the numbers of stages and ranks of the profile.
        """
        return 1

    def placed(self, profile: Profile) -> tuple[Profile, Placement]:
        """Return the profile with 2 x waves x P stages, and their placement.

        If the profile has one stage per rank, each is cut into 2 x waves. Raises InputError if the
        profile has neither P nor 2 x waves x P stages.
        """
        ranks, waves = profile.ranks, self.waves(profile.num_stages, profile.ranks)
        if profile.num_stages == ranks:
            profile = profile.split(2 * waves)
        if profile.num_stages != 2 * waves * ranks:
            raise InputError(
                f"{self.name}: expected a profile of {ranks} or {2 * waves * ranks} stages for "
                f"{counted(ranks, 'rank')}, got {profile.num_stages}"
            )
        return profile, Placement.v(ranks) if waves == 1 else Placement.wave(ranks, waves)

    def supports(self, problem: Problem) -> str | None:
        ranks, placement = problem.ranks, problem.placement
        waves = self.waves(problem.stages, ranks)
        if problem.stages != 2 * waves * ranks:
            given = f"{problem.stages} on {counted(ranks, 'rank')}"
            return f"needs {2 * waves} stages per rank, not {given}"
        if placement != Placement.wave(ranks, waves):
            return f"needs stages down the ranks and back up, not the placement {placement.name}"
        return None
