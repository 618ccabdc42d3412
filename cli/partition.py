"""``optimize`` of a profile by layers: the cut into stages is chosen as well."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pipeloom.ir.errors import InputError

from .arguments import at_least_one
from .placements import AUTO, owners_in
from .problems import document, named, tell_doubtful_keys, with_levers

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeloom.ir.layered import LayeredProfile
    from pipeloom.ir.problem import Placement
    from pipeloom.ir.profile import StageProfile
    from pipeloom.ir.schedule import Schedule
    from pipeloom.solver.partition.finals import Search
    from pipeloom.solver.partition.options import Option
    from pipeloom.solver.partition.search import Partitioned

WAYS = ("joint", "balanced", "even")


def add_partition(parser: argparse.ArgumentParser) -> None:
    """How the layers of a profile are cut."""
    parser.add_argument(
        "--partition",
        choices=WAYS,
        help="of a profile by layers, how they are cut into stages: together with the schedule (joint, the "
        "default), so that the longest stage is as short as can be (balanced), or as many blocks each (even)",
    )
    for most in ("min", "max"):
        parser.add_argument(
            f"--{most}-layers",
            metavar="N",
            type=at_least_one,
            help=f"{most}imum of layers that a stage has",
        )


def by_layers(args: argparse.Namespace) -> bool:
    """Whether the layers of the profile are to be cut. Raises InputError where it has none to cut."""
    given = next(
        (
            key
            for key in ("partition", "min_layers", "max_layers")
            if getattr(args, key) is not None
        ),
        None,
    )
    found = document(args)
    if given is not None and found.get("layers") is None:
        raise InputError(
            f"{named(args.profile)}: layers: missing; expected a list for --{given.replace('_', '-')}"
        )
    return given is not None or (found.get("layers") is not None and "stages" not in found)


@dataclass(frozen=True, slots=True)
class Answer:
    """What was found, and what is said of it."""

    found: Partitioned
    way: str

    @property
    def schedule(self) -> Schedule | None:
        return None if self.found.best is None else self.found.best.schedule

    def as_json(self) -> dict[str, Any]:
        """``partition`` of the command's answer."""
        found = self.found
        best = found.best
        return {
            "way": self.way,
            "placement": None if best is None else best.problem.placement.name,
            "parts": [] if best is None else _parts(best),
            "lower_bound": None if best is None else found.bound,
            "gap": self.gap,
            "cuts_seen": found.seen,
            "cuts_searched": [_entry(option) for option in found.searched],
            "not_possible": found.why_not,
        }

    @property
    def gap(self) -> float | None:
        best = self.found.best
        if best is None:
            return None
        return max(0.0, (best.cost - self.found.bound) / best.cost) if best.cost > 0 else 0.0

    def text(self) -> str:
        """The stages, and how far any cut could be better."""
        if self.found.best is None:
            return "\n".join(f"{name}: {why}" for name, why in self.found.why_not.items())
        from pipeloom.report.words import percent

        others = len({option.problem.placement.name for option in self.found.searched}) > 1
        which = "of all cuts with all these placements" if others else "of all cuts"
        lines = [
            _table(self.found.best),
            f"{which}: at most {percent(self.gap or 0.0)} from the best "
            f"({self.found.seen} looked at, {len(self.found.searched)} searched)",
        ]
        return "\n".join([*lines, *(f"{name}: {why}" for name, why in self.found.why_not.items())])


def choose(
    args: argparse.Namespace,
    search: Search,
    should_stop: Callable[[], bool],
) -> Answer:
    """The best cut, placement and schedule of the layers that ``args`` name.

    Raises InputError where the profile is wrong, or where the one placement asked for has no cut.
    """
    from pipeloom.ir.layered_format import parse_layers
    from pipeloom.ir.problem import Objective
    from pipeloom.solver.allowance import Allowance
    from pipeloom.solver.partition.cuts import Rules
    from pipeloom.solver.partition.desk import Way
    from pipeloom.solver.partition.search import best_partition

    if args.passing != "activations":
        raise InputError(
            f"--passing: expected activations for a profile by layers, got {args.passing!r}: cut it "
            "first, by `optimize` without --passing"
        )
    least, most = args.min_layers or 1, args.max_layers
    if most is not None and most < least:
        raise InputError(f"--max-layers: expected at least --min-layers ({least}), got {most}")
    where = named(args.profile)
    profile = _with_levers(args, parse_layers(document(args), where))
    tell_doubtful_keys(document(args), where)
    way = args.partition or WAYS[0]
    if args.work_limit is None:
        allowance = Allowance(seconds=args.time_limit)
    else:
        allowance = Allowance(ops=args.work_limit * 1e6)
    found = best_partition(
        profile,
        args.microbatches,
        _placements(args, profile),
        search,
        way=Way(way),
        rules=Rules(least, most),
        memory_limit=args.memory_limit,
        objective=Objective(args.objective),
        allowance=allowance,
        seed=args.seed,
        should_stop=should_stop,
    )
    if found.best is None and found.no_cut and args.placement.name != AUTO:
        (reason,) = found.why_not.values()
        raise InputError(f"{where}: layers: {args.placement.name}: {reason}")
    return Answer(found, way)


def _with_levers(args: argparse.Namespace, profile: LayeredProfile) -> LayeredProfile:
    from dataclasses import replace

    cluster = with_levers(args, replace(profile.cluster, stages=profile.layers), "layers")
    return replace(profile, layers=cluster.stages, cluster=replace(cluster, stages=()))


def _placements(args: argparse.Namespace, profile: LayeredProfile) -> Sequence[Placement]:
    """The one that is asked for, or all of those that ``--placement auto`` tries."""
    from dataclasses import replace

    from pipeloom.ir.problem import Passing, Placement
    from pipeloom.ir.profile import StageProfile
    from pipeloom.solver.placements import placements

    nothing = StageProfile(0.0, 0.0, 0.0, 0.0, 0.0)
    one_each = replace(profile.cluster, stages=(nothing,) * profile.ranks)
    if args.placement.name == AUTO:
        return [placement for _, placement in placements(one_each)]
    if args.placement.chunks is None:
        owners = owners_in(args.placement.name, profile.ranks)
        return [Placement(Passing.ACTIVATIONS, tuple(owners), args.placement.name)]
    return [args.placement.place(one_each, named(args.profile))[1]]


def _parts(option: Option) -> list[dict[str, Any]]:
    owners = option.problem.placement.owners
    return [
        {
            "stage": number,
            "rank": rank,
            "layers": [layer.name for layer in stage.layers],
            "modules": [module for layer in stage.layers for module in layer.modules],
        }
        for number, (rank, stage) in enumerate(
            zip(owners, option.problem.profile.stages, strict=True)
        )
    ]


def _entry(option: Option) -> dict[str, Any]:
    return {
        "placement": option.problem.placement.name,
        "starts": list(option.cut),
        "cost": option.cost,
        "lower_bound": option.bound,
    }


def _table(option: Option) -> str:
    from pipeloom.ir.amounts import amount
    from pipeloom.report.words import duration

    from .output import table

    rows = [
        [
            str(number),
            str(rank),
            duration(stage.t_f + stage.t_b + stage.t_w),
            amount(stage.m_b),
            "-" if stage.weight_bytes is None else amount(stage.weight_bytes),
            _names(stage),
        ]
        for number, (rank, stage) in enumerate(
            zip(option.problem.placement.owners, option.problem.profile.stages, strict=True)
        )
    ]
    return table(["stage", "rank", "a microbatch", "M_B", "weights", "layers"], rows)


def _names(stage: StageProfile) -> str:
    """Runs of blocks by the first and the last one."""
    from pipeloom.ir.layers import LayerKind

    layers, words = stage.layers, []
    block = [layer.kind is LayerKind.BLOCK for layer in layers]
    edges = [
        i
        for i in range(len(layers) + 1)
        if i in {0, len(layers)} or not (block[i - 1] and block[i])
    ]
    for first, end in pairwise(edges):
        run = layers[first:end]
        words.append(run[0].name if len(run) == 1 else f"{run[0].name} to {run[-1].name}")
    return ", ".join(words)
