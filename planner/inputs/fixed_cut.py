"""A profile by layers for a request with a fixed number of stages: the cut of the layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any, TypeAlias

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.layered_profile import LayeredProfile
from pipeloom.ir.model.problem import Objective
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.model.program import Program
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.units import counted
from pipeloom.solver.families import find_family
from pipeloom.solver.partition.cuts import Cutter

from .documents import Document, read_schedule
from .problem_setup import ProfileSource, check_microbatches, layers_of, stages_of

BALANCED, EVEN = "balanced", "even"
CutLike: TypeAlias = Schedule | Program | Document
"""``balanced``, ``even``, or a schedule whose cut is used."""
Profiles: TypeAlias = Callable[[str], Profile]


@dataclass(frozen=True, slots=True)
class Cuts:
    """Layers, and how to cut them: balanced, even, or as in a schedule."""

    layers: LayeredProfile
    where: str
    way: CutLike

    @classmethod
    def of(cls, source: ProfileSource, way: CutLike | None, **others: Any) -> Cuts | None:
        """How the layers of the profile are cut, balanced by default; None if it has stages and
        neither ``way`` nor one of the optimizer's options ``others`` asks for a cut.

        Raises InputError if the profile or ``partition`` is invalid.
        """
        if not source.is_cut(partition=way, **others):
            return None
        # only optimize supports "joint"
        how = BALANCED if way is None or way == "joint" else way
        if isinstance(how, str) and how not in {BALANCED, EVEN} and not {".", "/"} & set(how):
            raise InputError(
                "partition: expected balanced, even or a file of a schedule (a name with a dot or "
                f"a slash), got {how!r}"
            )
        return cls(layers_of(source), source.where, how)

    def into(self, stages: int) -> Profile:
        """The profile with this number of stages. Raises InputError if there is no such cut."""
        cutter = Cutter(self.layers, stages)
        cut = cutter.even()
        if cut is None:
            pieces = cutter.number - sum(self.layers.tied)
            raise InputError(
                f"{self.where}: layers: {pieces} that may be cut apart, fewer than "
                f"{counted(stages, 'stage')}"
            )
        if self.way == BALANCED:
            cut = cutter.balanced() or cut
        elif self.way != EVEN:
            cut = self._as_in_schedule(stages)
        return self.layers.cut(cut)

    def for_family(self, name: str, microbatches: int) -> Profile:
        """The profile with the number of stages that the family runs. Raises InputError."""
        # the number of stages depends only on the ranks, not on the cut
        one_each = replace(self, way=EVEN).into(self.layers.ranks)
        problem = find_family(name).problem(one_each, microbatches, None, Objective.PERIOD)
        return self.into(problem.profile.num_stages)

    def _as_in_schedule(self, stages: int) -> tuple[int, ...]:
        schedule, where = read_schedule(self.way, compiled=True)
        found = schedule.problem.profile
        names = [[layer.name for layer in stage.layers] for stage in found.stages]
        mine = [layer.name for stage in self.layers.layers for layer in stage.layers]
        if [name for part in names for name in part] != mine:
            raise InputError(f"{where}: profile: expected stages of the layers of {self.where}")
        if len(names) != stages:
            raise InputError(f"{where}: stages: expected {stages}, got {len(names)}")
        return tuple(accumulate(map(len, names[:-1]), initial=0))


def profiles_of(
    source: ProfileSource, microbatches: int, partition: CutLike | None = None, **others: Any
) -> tuple[Profile, Profiles, Cuts | None]:
    """The profile (with its layers as stages), a function from a family's name to its profile, and
    how layers are cut, or None."""
    cuts = Cuts.of(source, partition, **others)
    if cuts is None:
        profile = stages_of(source, microbatches)
        return profile, lambda _: profile, None
    layers = cuts.layers
    check_microbatches(microbatches, len(layers.layers))
    return layers.as_stages, partial(cuts.for_family, microbatches=microbatches), cuts
