"""The problem: a profile, a number of microbatches, a placement, a memory limit and an
objective."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from ..units import counted
from .ops import IntArray
from .profile import Profile


class Passing(Enum):
    """What travels between ranks; it follows from where ops are placed."""

    ACTIVATIONS = "activations"
    WEIGHTS = "weights"
    MIXED = "mixed"


class Objective(Enum):
    """What an iteration costs: without an optimizer barrier (period) or with one (makespan)."""

    PERIOD = "period"
    MAKESPAN = "makespan"


@dataclass(frozen=True, slots=True)
class Placement:
    """Which rank runs the ops of (stage, microbatch).

    ``owners`` gives the rank of each stage where activations travel, of each microbatch where
    weights do, and of each pair, stage by stage, where both do.
    """

    passing: Passing
    owners: tuple[int, ...]
    name: str = "custom"

    @classmethod
    def linear(cls, ranks: int) -> Placement:
        """Stage s on rank s."""
        return cls(Passing.ACTIVATIONS, tuple(range(ranks)), "linear")

    @classmethod
    def interleaved(cls, ranks: int, chunks: int) -> Placement:
        """Stage s on rank s mod P, ``chunks`` stages a rank."""
        return cls(Passing.ACTIVATIONS, tuple(range(ranks)) * chunks, f"interleaved:{chunks}")

    @classmethod
    def v(cls, ranks: int) -> Placement:
        """Two stages a rank: 0..P-1 down the ranks, P..2P-1 back up, so both ends are on rank 0."""
        return replace(cls.wave(ranks, 1), name="v")

    @classmethod
    def wave(cls, ranks: int, waves: int) -> Placement:
        """Stages down the ranks and back up, ``waves`` times: 2 ``waves`` stages a rank."""
        down = tuple(range(ranks))
        return cls(Passing.ACTIVATIONS, (*down, *reversed(down)) * waves, f"wave:{waves}")

    @classmethod
    def round_robin(cls, ranks: int, microbatches: int) -> Placement:
        """Microbatch j on rank j mod P; weights travel."""
        owners = tuple(j % ranks for j in range(microbatches))
        return cls(Passing.WEIGHTS, owners, "round-robin")

    @classmethod
    def weights_inside(cls, ranks: int, island: int, stages: int, microbatches: int) -> Placement:
        """Islands of ``island`` consecutive ranks, each with as many consecutive stages.

        Microbatch j is run by the j mod ``island``-th rank of every island: weights travel inside
        the islands, activations between them. Raises ValueError where there is no such placement.
        """
        islands = _islands(ranks, island, "island", ranks // max(1, island), stages)
        first = [s * islands // stages * island for s in range(stages)]
        owners = tuple(rank + j % island for rank in first for j in range(microbatches))
        return cls(Passing.MIXED, owners, f"weights-inside:{island}")

    @classmethod
    def activations_inside(
        cls, ranks: int, island: int, stages: int, microbatches: int
    ) -> Placement:
        """Islands of ``island`` consecutive ranks, each a pipeline of all stages.

        Microbatch j is run by the j mod P/``island``-th island, whose ranks have as many
        consecutive stages each: activations travel inside the islands, weights between them. Raises
        ValueError where there is no such placement.
        """
        islands = _islands(ranks, island, "rank", island, stages)
        rank = [s * island // stages for s in range(stages)]
        owners = tuple(r + j % islands * island for r in rank for j in range(microbatches))
        return cls(Passing.MIXED, owners, f"activations-inside:{island}")

    @classmethod
    def bidirectional(cls, ranks: int, microbatches: int) -> Placement:
        """Stage s of an even microbatch on rank s, of an odd one on rank P-1-s, each with a copy of
        its weights."""
        owners = tuple(
            ranks - 1 - stage if j % 2 else stage
            for stage in range(ranks)
            for j in range(microbatches)
        )
        return cls(Passing.MIXED, owners, "bidirectional")

    def matrix(self, stages: int, microbatches: int) -> IntArray:
        """The rank of each (stage, microbatch), shape (S, M)."""
        owners = np.array(self.owners, dtype=np.int64)
        if self.passing is Passing.ACTIVATIONS:
            owners = owners[:, None]
        elif self.passing is Passing.MIXED:
            owners = owners.reshape(stages, microbatches)
        return np.ascontiguousarray(np.broadcast_to(owners, (stages, microbatches)))

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """The stages that live on ``rank`` (activation passing)."""
        return tuple(s for s, owner in enumerate(self.owners) if owner == rank)


def _islands(ranks: int, island: int, holder: str, holders: int, stages: int) -> int:
    """How many islands of ``island`` ranks there are; ``holders`` each need stages of their own."""
    if island < 1 or ranks % island:
        raise ValueError(f"{counted(ranks, 'rank')} cannot be cut into islands of {island}")
    if stages < holders:
        raise ValueError(f"expected a stage for each {holder} ({holders}), got {stages}")
    return ranks // island


@dataclass(frozen=True, slots=True)
class Problem:
    """One instance: every valid schedule of it keeps the placement and the memory limit.

    ``memory_limit`` is one number a rank, ``math.inf`` where there is none.
    """

    profile: Profile
    microbatches: int
    placement: Placement
    memory_limit: tuple[float, ...]
    objective: Objective = Objective.PERIOD

    @classmethod
    def linear(
        cls,
        profile: Profile,
        microbatches: int,
        memory_limit: float | None = None,
        objective: Objective = Objective.PERIOD,
    ) -> Problem:
        """One stage a rank, the profile's own memory limit unless one is given."""
        return cls(
            profile,
            microbatches,
            Placement.linear(profile.ranks),
            profile.limit_from(memory_limit),
            objective,
        )

    @property
    def ranks(self) -> int:
        return self.profile.ranks

    @property
    def stages(self) -> int:
        return self.profile.num_stages

    @property
    def limited(self) -> bool:
        return any(math.isfinite(limit) for limit in self.memory_limit)
