"""What the families share whose stages go down the ranks and back up, once or more often."""

from __future__ import annotations

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.units import counted


class Folded:
    """2 ``waves`` stages a rank: 0..P-1 on ranks 0..P-1, the next P on P-1..0, and so on."""

    name: str
    waves: int | None = 1

    def problem(
        self,
        profile: Profile,
        microbatches: int,
        memory_limit: float | None,
        objective: Objective,
    ) -> Problem:
        """Cuts each stage where the profile has one a rank; takes 2 waves P stages as they are."""
        ranks = profile.ranks
        waves = self.waves or _own_waves(profile) or 1
        if profile.num_stages == ranks:
            profile = profile.split(2 * waves)
        if profile.num_stages != 2 * waves * ranks:
            raise InputError(
                f"{self.name}: expected a profile of {ranks} or {2 * waves * ranks} stages for "
                f"{counted(ranks, 'rank')}, got {profile.num_stages}"
            )
        placement = Placement.v(ranks) if waves == 1 else Placement.wave(ranks, waves)
        limit = profile.limit_from(memory_limit)
        return Problem(profile, microbatches, placement, limit, objective)

    def supports(self, problem: Problem) -> str | None:
        ranks, placement = problem.ranks, problem.placement
        waves = self.waves or problem.stages // (2 * ranks)
        if problem.stages != 2 * waves * ranks or not waves:
            return (
                f"needs {2 * waves or 2} stages a rank, not {problem.stages} on "
                f"{counted(ranks, 'rank')}"
            )
        if placement != Placement.wave(ranks, waves):
            return f"needs stages down the ranks and back up, not the placement {placement.name}"
        return None


def _own_waves(profile: Profile) -> int | None:
    waves, rest = divmod(profile.num_stages, 2 * profile.ranks)
    return None if rest else waves
