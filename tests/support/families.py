"""Which families the tests that run over all of them can ask for."""

from __future__ import annotations

from pipeloom.solver import FAMILIES
from pipeloom.solver.families.weights.ring import RingFamily

# those in which weights go round a ring, and all in which weights travel
RINGS = [name for name, family in FAMILIES.items() if isinstance(family, RingFamily)]
TRAVELLING = [*RINGS, "fsdp"]


def fits(name: str, ranks: int) -> bool:
    """Whether a family can be built of one stage a rank: some want an even number."""
    return name.partition(":")[0] not in {"wzb1", "chimera", "dualpipe"} or ranks % 2 == 0


def families_of(ranks: int) -> list[str]:
    return [name for name in FAMILIES if fits(name, ranks)]
