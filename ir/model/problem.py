"""The problem: a profile with microbatches, placement, memory limits and objective."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from ..errors import InputError
from .ops import IntArray
from .placement import Placement
from .profile import Profile


class Objective(Enum):
    """The cost of an iteration: without an optimizer barrier (period) or with one (makespan)."""

    PERIOD = "period"
    MAKESPAN = "makespan"


@dataclass(frozen=True, slots=True)
class Problem:
    """One instance: every valid schedule of it keeps the placement and the memory limit.

    ``memory_limit`` is one number per rank, ``math.inf`` where there is none. Raises InputError
    where the profile has numbers for another number of microbatches.
    """

    profile: Profile
    microbatches: int
    placement: Placement
    memory_limit: tuple[float, ...]
    objective: Objective = Objective.PERIOD

    def __post_init__(self) -> None:
        for s, stage in enumerate(self.profile.stages):
            if stage.each and len(stage.each) != self.microbatches:
                raise InputError(
                    f"microbatches: expected {len(stage.each)}, as many as stages[{s}] has numbers "
                    f"for, got {self.microbatches}"
                )

    @classmethod
    def linear(
        cls,
        profile: Profile,
        microbatches: int,
        memory_limit: float | None = None,
        objective: Objective = Objective.PERIOD,
    ) -> Problem:
        """One stage per rank, the profile's own memory limit unless one is given."""
        return cls(
            profile,
            microbatches,
            Placement.linear(profile.ranks),
            profile.limit_from(memory_limit),
            objective,
        )

    @property
    def ranks(self) -> int:
        """How many ranks there are, P."""
        return self.profile.ranks

    @property
    def stages(self) -> int:
        """How many stages there are, S."""
        return self.profile.num_stages

    @property
    def owner(self) -> IntArray:
        """The rank of each (stage, microbatch), shape (S, M)."""
        return self.placement.matrix(self.stages, self.microbatches)

    @property
    def limited(self) -> bool:
        """Whether any rank has a memory limit."""
        return any(math.isfinite(limit) for limit in self.memory_limit)
