"""The families for tests that run over all families."""

from __future__ import annotations

from pipeloom.solver import FAMILIES
from pipeloom.solver.families.weights.ring import RingFamily

# families that pass weights in a ring, and all that pass weights
RINGS = [name for name, family in FAMILIES.items() if isinstance(family, RingFamily)]
TRAVELLING = [*RINGS, "fsdp"]


def fits(name: str, ranks: int) -> bool:
    """Whether a family can be built with one stage per rank; some need an even number of ranks."""
    return name.partition(":")[0] not in {"wzb1", "chimera", "dualpipe"} or ranks % 2 == 0


def families_of(ranks: int) -> list[str]:
    return [name for name in FAMILIES if fits(name, ranks)]
