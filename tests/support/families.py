"""The families for tests that run over all families."""

from __future__ import annotations

from pipeloom.ir import Passing, Profile, StageProfile
from pipeloom.solver import FAMILIES

_TWO = Profile((StageProfile(1.0, 1.0, 1.0),) * 2, 2)
# families that pass weights, and those that do so in a ring
TRAVELLING = [
    name for name, family in FAMILIES.items() if family.placed(_TWO)[1].passing is Passing.WEIGHTS
]
RINGS = [name for name in TRAVELLING if name != "fsdp"]


def fits(name: str, ranks: int) -> bool:
    """Whether a family can be built with one stage per rank; some need an even number of ranks."""
    return name.partition(":")[0] not in {"wzb1", "chimera", "dualpipe"} or ranks % 2 == 0


def families_of(ranks: int) -> list[str]:
    return [name for name in FAMILIES if fits(name, ranks)]
