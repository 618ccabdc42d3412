"""The families of schedules that ``predict`` and ``plan`` support for a training run: those that
send activations and update weights once per step."""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Any

import numpy as np

from pipeloom.ir.errors import InputError, did_you_mean
from pipeloom.ir.model.ops import OpKind, fields_of
from pipeloom.ir.model.placement import Passing, Placement
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.removed import replaced
from pipeloom.solver.families import ASYNCHRONOUS, FAMILIES, build_family, find_family

_EQUAL = StageProfile(1.0, 1.0, 1.0, 1.0, 0.0)


@cache
def usable_families() -> tuple[str, ...]:
    """Return the names of the families that a training run can use."""
    profile = Profile((_EQUAL,) * 4, 4)
    placed = {name: family.placed(profile)[1] for name, family in FAMILIES.items()}
    stays = {name for name, each in placed.items() if each.passing is Passing.ACTIVATIONS}
    return tuple(name for name in FAMILIES if name in stays and name not in ASYNCHRONOUS)


def check_family(name: Any) -> None:
    """Raise InputError unless ``name`` is the name of a family that a training run can use, with or
    without a parameter, as in ``interleaved-1f1b:2``."""
    base = name.lower().partition(":")[0] if isinstance(name, str) else ""
    if (line := replaced(f"--schedule {base}")) is not None:
        raise InputError(f"schedule: {base} {line}")
    if base not in usable_families():
        hint = did_you_mean(base, usable_families())
        known = ", ".join(usable_families())
        raise InputError(f"schedule: expected one of {known}, got {name!r:.60}{hint}")


@lru_cache(maxsize=256)
def placement_of(family: str, ranks: int, chunks: int) -> Placement:
    """Return the placement that a family uses for ``chunks`` stages per rank. Raises InputError if
    the family does not exist or cannot have this number of stages per rank."""
    return find_family(family).placed(Profile((_EQUAL,) * (ranks * chunks), ranks))[1]


@lru_cache(maxsize=256)
def schedule_of(family: str, ranks: int, chunks: int, microbatches: int) -> Schedule:
    """Return the schedule of a family for stages that all take equally long.

    ``chunks``: stages per rank. Raises InputError if the family cannot be built, or has a different
    number of stages per rank.
    """
    try:
        found = build_family(family, Profile((_EQUAL,) * (ranks * chunks), ranks), microbatches)
    except InputError as error:
        raise InputError(*(f"schedule: {line}" for line in error.errors)) from None
    needed = found.problem.stages // ranks
    if needed != chunks:
        raise InputError(f"vp: expected {needed}, as {family} has, got {chunks}: add --vp {needed}")
    return found


def splits(schedule: Schedule) -> bool:
    """Return whether the schedule runs B and W as separate ops for any microbatch."""
    kinds, _, _ = fields_of(np.concatenate(schedule.order))
    return bool((kinds == OpKind.W).any())
