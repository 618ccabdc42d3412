"""The cut of a profile's layers into a number of stages that is known before the search, as for a
single family."""

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
"""How layers are cut: ``balanced``, ``even``, or a schedule whose cut is used."""
Profiles: TypeAlias = Callable[[str], Profile]


@dataclass(frozen=True, slots=True)
class Cuts:
    """The layers of a profile, and how they are cut into stages.

    ``where``: the profile's name in messages. ``way``: ``balanced``, ``even``, or a schedule with
    stages of the same layers, whose cut is used.
    """

    layers: LayeredProfile
    where: str
    way: CutLike

    @classmethod
    def of(cls, source: ProfileSource, way: CutLike | None, **others: Any) -> Cuts | None:
        """Return how the layers of a profile are cut, by default balanced; None if the profile has
        stages and no option asks for a cut.

        ``way``: the option ``partition``. ``others``: other options that ask for a cut if they are
        not None. Raises InputError if the profile or ``partition`` is invalid.
        """
        if not source.is_cut(partition=way, **others):
            return None
        # "joint" is an option of optimize only; families are then cut balanced
        how = BALANCED if way is None or way == "joint" else way
        if isinstance(how, str) and how not in {BALANCED, EVEN} and not {".", "/"} & set(how):
            raise InputError(
                "partition: expected balanced, even or a file of a schedule (a name with a dot or "
                f"a slash), got {how!r}"
            )
        return cls(layers_of(source), source.where, how)

    def into(self, stages: int) -> Profile:
        """Return the profile with its layers cut into this number of stages. Raises InputError if
        this is impossible."""
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
        """Return the profile with its layers cut into as many stages as the family ``name`` has.
        Raises InputError if this is impossible, or if the family does not exist."""
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
    """Return what is needed to build families for a profile by stages or by layers.

    The result has three items: the profile (if layers are cut, each layer is a stage of it); a
    function that returns the profile for a family, given its name; and how the layers are cut, or
    None if the profile has stages and no option asks for a cut.

    ``partition`` and ``others``: options that ask for a cut, as in :meth:`Cuts.of`. Raises
    InputError if the profile, the number of microbatches or an option is invalid.
    """
    cuts = Cuts.of(source, partition, **others)
    if cuts is None:
        profile = stages_of(source, microbatches)
        return profile, lambda _: profile, None
    layers = cuts.layers
    check_microbatches(microbatches, len(layers.layers))
    return layers.as_stages, partial(cuts.for_family, microbatches=microbatches), cuts
