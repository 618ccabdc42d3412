"""``optimize`` of a profile by layers: the cut into stages is chosen as well."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from time import monotonic
from typing import TYPE_CHECKING, Any

from pipeloom.cli.arguments import at_least_one
from pipeloom.cli.inputs import check_microbatches, document, named, tell_doubtful_keys, with_levers
from pipeloom.ir.errors import InfeasibleError, InputError

from ..placement.spec import AUTO, owners_in

if TYPE_CHECKING:
    from collections.abc import Callable

    from pipeloom.ir.model.layered_profile import LayeredProfile
    from pipeloom.ir.model.placement import Placement
    from pipeloom.ir.model.profile import StageProfile
    from pipeloom.ir.model.schedule import Schedule
    from pipeloom.solver.partition.candidate import Candidate
    from pipeloom.solver.partition.min_memory import MinMemory
    from pipeloom.solver.partition.refinement import Search
    from pipeloom.solver.partition.search import Partitioned

    from ..cache import ScheduleCache
    from .cache_key import CutQuestion

WAYS = ("joint", "balanced", "even")


def add_partition(parser: argparse.ArgumentParser) -> None:
    """How the layers of a profile are cut."""
    parser.add_argument(
        "--partition",
        choices=WAYS,
        help="of a profile by layers, how they are cut into stages: together with the schedule "
        "(joint, the "
        "default), so that the longest stage is as short as can be (balanced), or as many blocks "
        "each (even)",
    )
    for most in ("min", "max"):
        parser.add_argument(
            f"--{most}-layers",
            metavar="N",
            type=at_least_one,
            help=f"{most}imum of layers that a stage has",
        )


def by_layers(args: argparse.Namespace) -> bool:
    """Whether the layers of the profile are to be cut. Raises InputError where it has none to
    cut."""
    given = next(
        (
            key
            for key in ("partition", "min_layers", "max_layers")
            if getattr(args, key, None) is not None
        ),
        None,
    )
    found = document(args)
    if given is not None and found.get("layers") is None:
        raise InputError(
            f"{named(args.profile)}: layers: missing; expected a list for "
            f"--{given.replace('_', '-')}"
        )
    return given is not None or (found.get("layers") is not None and "stages" not in found)


@dataclass(frozen=True, slots=True)
class Answer:
    """The best schedule with its cut, and ``facts``: ``partition`` of the command's answer.

    ``smallest``: what memory would have to be, where no cut fits. Where there is neither, the
    layers cannot be cut for any of the placements.
    """

    schedule: Schedule | None
    facts: dict[str, Any]
    smallest: MinMemory | None = None

    @property
    def bound(self) -> float:
        """No schedule of any cut costs less, with any of the placements; 0 where nothing fits."""
        return self.facts["lower_bound"] or 0.0

    def text(self) -> str:
        """The stages, the placements where there are several, and how far any cut could be
        better."""
        if self.schedule is None:
            return "\n".join(f"{name}: {why}" for name, why in self.facts["not_possible"].items())
        from pipeloom.report.summaries import percent

        from ..placement.choose import entries

        tried, searched = self.facts["placements"], len(self.facts["cuts_searched"])
        which = "of all cuts with all these placements" if len(tried) > 1 else "of all cuts"
        return "\n".join(
            [
                _table(self.schedule),
                *(["", entries(tried)] if len(tried) > 1 else []),
                f"{which}: at most {percent(self.facts['gap'])} from the best "
                f"({self.facts['cuts_seen']} looked at, {searched} searched)",
            ]
        )

    def checked(self) -> Schedule:
        """The schedule. Raises InfeasibleError where no cut fits."""
        if self.schedule is not None:
            return self.schedule
        if self.smallest is None:
            raise InputError(*self.text().splitlines())
        least = self.smallest
        raise InfeasibleError(
            self.text(), smallest=least.limit, rank=least.rank, device=least.device
        )


def choose(
    args: argparse.Namespace,
    search: Search,
    should_stop: Callable[[], bool],
    cache: ScheduleCache | None,
    tell: Callable[[str], None],
) -> Answer:
    """The best cut, placement and schedule of the layers that ``args`` name.

    Where ``cache`` has an answer it is taken, as ``tell`` is told, else kept there, unless it was
    stopped. Raises InputError where the profile is wrong, or where the one placement asked for has
    no cut.
    """
    from pipeloom.solver.core.budget import Budget
    from pipeloom.solver.partition.search import best_partition

    begin, question = monotonic(), _question(args)
    known = None if cache is None else cache.find_more(question)
    if cache is not None and known is not None:
        tell(f"taken from the cache: {cache.path(question)}")
        return Answer(*known)
    seconds = args.time_limit if args.work_limit is None else math.inf
    found = best_partition(
        question.profile,
        args.microbatches,
        question.placements,
        search,
        way=question.way,
        rules=question.rules,
        memory_limit=args.memory_limit,
        objective=question.objective,
        budget=Budget(seconds, math.inf if args.work_limit is None else args.work_limit * 1e6),
        seed=args.seed,
        should_stop=should_stop,
    )
    if found.best is None and found.smallest is None and args.placement.name != AUTO:
        (reason,) = found.why_not.values()
        raise InputError(f"{named(args.profile)}: layers: {args.placement.name}: {reason}")
    schedule = _reported(found, monotonic() - begin, args.seed)
    answer = Answer(schedule, _facts(found, question.way.value), found.smallest)
    if cache is not None and schedule is not None and not should_stop():
        cache.keep(question, schedule, answer.facts)
    return answer


def _question(args: argparse.Namespace) -> CutQuestion:
    """What ``args`` ask. Raises InputError where they, or the profile, are wrong."""
    from pipeloom.ir.model.problem import Objective
    from pipeloom.solver.partition.candidate_pool import Way
    from pipeloom.solver.partition.cuts import Rules

    from .cache_key import CutQuestion

    if args.passing != "activations":
        raise InputError(
            f"--passing: expected activations for a profile by layers, got {args.passing!r}: cut "
            "it "
            "first, by `optimize` without --passing"
        )
    least, most = args.min_layers or 1, args.max_layers
    if most is not None and most < least:
        raise InputError(f"--max-layers: expected at least --min-layers ({least}), got {most}")
    profile = layers_of(args)
    placements = tuple(_placements(args, profile))
    check_microbatches(args, max(len(placement.owners) for placement in placements))
    return CutQuestion(
        profile,
        args.microbatches,
        placements,
        profile.cluster.limit_from(args.memory_limit),
        Objective(args.objective),
        Way(args.partition or WAYS[0]),
        Rules(least, most),
        args.solver,
        args.seed,
        args.time_limit,
        args.work_limit,
    )


def _reported(found: Partitioned, seconds: float, seed: int) -> Schedule | None:
    """The best schedule, solved in all the time that it took, looking at cuts included, from the
    seed of the whole."""
    best = None if found.best is None else found.best.schedule
    if best is None or best.report is None:
        return best
    return replace(best, report=replace(best.report, solve_seconds=seconds, seed=seed))


def _facts(found: Partitioned, way: str) -> dict[str, Any]:
    from ..placement.choose import entry

    best = found.best
    cost = None if best is None else best.cost
    gap = None if best is None else 0.0
    if best is not None and best.cost > 0:
        gap = max(0.0, (best.cost - found.bound) / best.cost)
    return {
        "way": way,
        "placement": None if best is None else best.problem.placement.name,
        "parts": [] if best is None else _parts(best),
        "lower_bound": None if best is None else found.bound,
        "gap": gap,
        "cuts_seen": found.seen,
        "cuts_searched": [_entry(option) for option in found.searched],
        "placements": [entry(tried, cost) for tried in found.tried],
        "not_possible": found.why_not,
    }


def layers_of(args: argparse.Namespace) -> LayeredProfile:
    """The profile by layers, with the levers that ``args`` want. Raises InputError where it is
    wrong."""
    from pipeloom.ir.formats.layered_profile_json import parse_layers

    where = named(args.profile)
    profile = parse_layers(document(args), where)
    tell_doubtful_keys(document(args), where)
    cluster = with_levers(args, replace(profile.cluster, stages=profile.layers), "layers")
    return replace(profile, layers=cluster.stages, cluster=replace(cluster, stages=()))


def _placements(args: argparse.Namespace, profile: LayeredProfile) -> Sequence[Placement]:
    """The one that is asked for, or all of those that ``--placement auto`` tries."""
    from pipeloom.ir.model.placement import Placement
    from pipeloom.ir.model.profile import StageProfile
    from pipeloom.solver.placement.search import placements

    nothing = StageProfile(0.0, 0.0, 0.0, 0.0, 0.0)
    one_each = replace(profile.cluster, stages=(nothing,) * profile.ranks)
    if args.placement.name == AUTO:
        return [placement for _, placement in placements(one_each)]
    if args.placement.chunks is None:
        owners = owners_in(args.placement.name, profile.ranks)
        return [Placement.of_stages(tuple(owners), args.placement.name)]
    return [args.placement.place(one_each, named(args.profile))[1]]


def _parts(option: Candidate) -> list[dict[str, Any]]:
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


def _entry(option: Candidate) -> dict[str, Any]:
    return {
        "placement": option.problem.placement.name,
        "starts": list(option.cut),
        "cost": option.cost,
        "lower_bound": option.bound,
    }


def _table(schedule: Schedule) -> str:
    from pipeloom.ir.units import amount, duration
    from pipeloom.report.text_table import table

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
            zip(schedule.problem.placement.owners, schedule.problem.profile.stages, strict=True)
        )
    ]
    return table(["stage", "rank", "a microbatch", "M_B", "weights", "layers"], rows)


def _names(stage: StageProfile) -> str:
    """Runs of blocks by the first and the last one."""
    from pipeloom.ir.model.layers import LayerKind

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
