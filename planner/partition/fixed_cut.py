"""A profile by layers where a number of stages is asked for: its layers cut into as many."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, TypeAlias

from pipeloom.cli.inputs import announce_unless_quiet, check_microbatches, load, named
from pipeloom.ir.errors import InputError
from pipeloom.ir.units import counted

from .joint import by_layers, layers_of

if TYPE_CHECKING:
    from pipeloom.ir.model.layered_profile import LayeredProfile
    from pipeloom.ir.model.profile import Profile
    from pipeloom.ir.model.schedule import Schedule

    from .joint import Answer

    Profiles: TypeAlias = Callable[[str], Profile]

BALANCED, EVEN = "balanced", "even"
CLOSED = 1e-6


def add_cut(parser: argparse.ArgumentParser, *, files: bool = True) -> None:
    """How the layers of a profile are cut; ``files``: or as in a schedule."""
    parser.add_argument(
        "--partition",
        metavar="HOW",
        help="of a profile by layers, how they are cut into stages: balanced (the longest stage "
        "as short as can "
        "be, the default), even (as many blocks each)"
        + (", or a schedule, whose cut is taken" if files else ""),
    )


@dataclass(frozen=True, slots=True)
class Cuts:
    """Layers that are cut in one ``way``: balanced, even, or as in the schedule in that file."""

    layers: LayeredProfile
    where: str
    way: str

    def into(self, stages: int) -> Profile:
        """The profile of so many stages. Raises InputError where there is no such cut."""
        from pipeloom.solver.partition.cuts import Cutter

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
            cut = self._as_in_file(stages)
        return self.layers.cut(cut)

    def for_family(self, name: str, microbatches: int) -> Profile:
        """As many stages as the family runs. Raises InputError where it cannot be made of them."""
        from pipeloom.ir.model.problem import Objective
        from pipeloom.solver.families import find_family

        # how many that are follows from the ranks, not from where it is cut
        one_each = replace(self, way=EVEN).into(self.layers.ranks)
        problem = find_family(name).problem(one_each, microbatches, None, Objective.PERIOD)
        return self.into(problem.profile.num_stages)

    def _as_in_file(self, stages: int) -> tuple[int, ...]:
        from pipeloom.cli.commands.show import load_any

        found = load_any(self.way).problem.profile
        names = [[layer.name for layer in stage.layers] for stage in found.stages]
        mine = [layer.name for stage in self.layers.layers for layer in stage.layers]
        if [name for part in names for name in part] != mine:
            raise InputError(f"{self.way}: profile: expected stages of the layers of {self.where}")
        if len(names) != stages:
            raise InputError(f"{self.way}: stages: expected {stages}, got {len(names)}")
        return tuple(accumulate(map(len, names[:-1]), initial=0))


def load_cuts(args: argparse.Namespace) -> Cuts | None:
    """How the layers of the profile are cut; None where it has stages."""
    if not by_layers(args):
        return None
    way = args.partition or BALANCED
    if way == "joint":  # what the optimizer alone can do
        way = BALANCED
    if way not in {BALANCED, EVEN} and not ("." in way or "/" in way):
        raise InputError(
            f"--partition: expected balanced, even or a file of a schedule (a name with a dot or a "
            f"slash), got {way!r}"
        )
    return Cuts(layers_of(args), named(args.profile), way)


def load_profiles(args: argparse.Namespace) -> tuple[Profile, Profiles, Cuts | None]:
    """The profile, that of each family, and how it is cut where it has layers (which are its stages
    then)."""
    cuts = load_cuts(args)
    if cuts is None:
        profile = load(args)
        return profile, lambda _: profile, None
    announce_unless_quiet(args)
    layers, microbatches = cuts.layers, args.microbatches
    check_microbatches(args, len(layers.layers))
    return (
        replace(layers.cluster, stages=layers.layers),
        partial(cuts.for_family, microbatches=microbatches),
        cuts,
    )


def of_all_cuts(answer: Answer) -> Schedule:
    """The best schedule under the bound on all cuts, which holds for its own cut too.

    Raises InfeasibleError where no cut fits.
    """
    from pipeloom.ir.model.schedule import Status

    schedule = answer.checked()
    assert schedule.report is not None
    status = Status.OPTIMAL if answer.facts["gap"] <= CLOSED else Status.FEASIBLE
    report = replace(
        schedule.report, lower_bound=answer.bound, bound_name="all cuts", status=status
    )
    return replace(schedule, report=report)
