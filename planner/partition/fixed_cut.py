"""A profile by layers where a number of stages is asked for: its layers cut into as many."""

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

from ..inputs.documents import Document, read_schedule
from ..inputs.problem_setup import ProfileSource, check_microbatches, layers_of, stages_of

BALANCED, EVEN = "balanced", "even"
CutLike: TypeAlias = Schedule | Program | Document
"""``balanced``, ``even``, or the schedule whose cut is taken."""
Profiles: TypeAlias = Callable[[str], Profile]


@dataclass(frozen=True, slots=True)
class Cuts:
    """Layers that are cut in one ``way``: balanced, even, or as in a schedule."""

    layers: LayeredProfile
    where: str
    way: CutLike

    @classmethod
    def of(cls, source: ProfileSource, way: CutLike | None, **others: Any) -> Cuts | None:
        """How the layers of the profile are cut, balanced by default; None where it has stages
        and neither the ``way`` nor ``others`` of the optimizer's options say so.

        Raises InputError where the profile, or the ``partition``, is wrong.
        """
        if not source.is_cut(partition=way, **others):
            return None
        # joint: what optimize alone can do
        how = BALANCED if way is None or way == "joint" else way
        if isinstance(how, str) and how not in {BALANCED, EVEN} and not {".", "/"} & set(how):
            raise InputError(
                "partition: expected balanced, even or a file of a schedule (a name with a dot or "
                f"a slash), got {how!r}"
            )
        return cls(layers_of(source), source.where, how)

    def into(self, stages: int) -> Profile:
        """The profile of so many stages. Raises InputError where there is no such cut."""
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
        """A profile of as many stages as the family runs. Raises InputError where there is none."""
        # how many that are follows from the ranks, not from where it is cut
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
    """The profile (its layers as stages), that of each family, and how layers are cut, if any."""
    cuts = Cuts.of(source, partition, **others)
    if cuts is None:
        profile = stages_of(source, microbatches)
        return profile, lambda _: profile, None
    layers = cuts.layers
    check_microbatches(microbatches, len(layers.layers))
    return layers.as_stages, partial(cuts.for_family, microbatches=microbatches), cuts
