"""The problem: a profile, a number of microbatches, a placement, memory limits, an objective."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from ..errors import InputError
from .ops import IntArray
from .placement import Placement
from .profile import Profile


class Objective(StrEnum):
    """The cost to minimize: the period (no barrier at optimizer steps) or makespan (a barrier)."""

    PERIOD = "period"
    MAKESPAN = "makespan"


@dataclass(frozen=True, slots=True)
class Problem:
    """A scheduling problem; its valid schedules respect the placement and the memory limits.

    ``microbatches``: their number, M. ``memory_limit``: the activation memory that each rank may
    hold, (P,), in the profile's unit; ``math.inf`` is unlimited. ``objective``: the cost to
    minimize. Raises InputError if the profile has one time per microbatch, but not M of them.
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
        """The problem with one stage per rank (stage s on rank s).

        ``memory_limit``: the limit of every rank; by default, the limits of the profile apply.
        """
        return cls(
            profile,
            microbatches,
            Placement.linear(profile.ranks),
            profile.limit_from(memory_limit),
            objective,
        )

    @property
    def ranks(self) -> int:
        """The number of ranks, P."""
        return self.profile.ranks

    @property
    def stages(self) -> int:
        """The number of stages, S."""
        return self.profile.num_stages

    @property
    def owner(self) -> IntArray:
        """The rank of each (stage, microbatch), shape (S, M)."""
        return self.placement.matrix(self.stages, self.microbatches)

    @property
    def limited(self) -> bool:
        """Whether at least one rank has a finite memory limit."""
        return any(math.isfinite(limit) for limit in self.memory_limit)
