"""``optimize --for``: the best schedule among those that another system runs.

Megatron-LM runs 1F1B, or interleaved 1F1B with K stages a rank, on any layout
(``--pipeline-model-parallel-layout``). torchtitan runs the classes of torch.distributed.pipelining,
of which GPipe, 1F1B and Interleaved1F1B are our families to the op, and from a CSV any order of F,
B, W and BW of stages that lie round and round or as a V.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from pipeloom.ir.errors import InfeasibleError, InputError
from pipeloom.ir.model.layered_profile import LayeredProfile
from pipeloom.ir.model.layers import LayerKind
from pipeloom.ir.model.placement import PlacementKind
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.model.schedule import gap_between
from pipeloom.ir.units import duration
from pipeloom.report.summaries import percent
from pipeloom.report.text_table import table
from pipeloom.solver.core.options import SolveOptions
from pipeloom.solver.core.schedule_cost import iteration_time
from pipeloom.solver.core.stopping import FirstOf, StoppingCriterion
from pipeloom.solver.families import build_family
from pipeloom.solver.placement.search import CUTS, overfull

from .answer import Answer, Candidate, NothingFits
from .inputs.placement_spec import AUTO, PlacementSpec
from .inputs.problem_setup import check_choice
from .partition.family_cut import FamilyPlan, best_family_cut
from .solving.search import CachedSearch

OWN_SHARE = 0.1
"""Share of the time for a system's own schedules where it runs any other order as well."""
INTERLEAVED, V = "interleaved-1f1b", "v"


@dataclass(frozen=True, slots=True)
class System:
    """A system runs ``families``, whose order of ops no cut changes, with one stage a rank, and
    interleaved 1F1B, on placements of these ``kinds``; ``any_order``: any other order of F, B, W
    and BW, too."""

    name: str
    families: tuple[str, ...]
    kinds: tuple[PlacementKind, ...]
    any_order: bool

    def check(self, spec: PlacementSpec, **options: object) -> None:
        """Raises InputError for a placement that the system has not, and for ``options`` with
        anything but None, which it cannot do."""
        for name, value in options.items():
            if value is not None:
                raise InputError(f"{name}: expected none with --for, got {value!r}")
        kinds = [kind.value for kind in self.kinds]
        if spec.name != AUTO and spec.name.partition(":")[0] not in kinds:
            raise InputError(
                f"placement: expected {' or '.join(kinds)}, as {self.name} runs them, got "
                f"{spec.name!r}"
            )

    def plain(self, profile: Profile, where: str) -> Profile:
        """Without pairs. Raises InputError where the profile, called ``where``, does not have as
        many stages on each rank."""
        if profile.num_stages % profile.ranks:
            raise InputError(
                f"{where}: stages: expected a multiple of {profile.ranks} for {self.name}, got "
                f"{profile.num_stages}"
            )
        return replace(profile, stages=tuple(replace(s, t_fb=None) for s in profile.stages))

    def cuttable(self, layers: LayeredProfile) -> LayeredProfile:
        """Without pairs, and with those layers kept together that the system has in one stage."""
        kinds = pairwise(layer.layers[0].kind for layer in layers.layers)
        together = [self._together(a, b) for a, b in kinds]
        tied = [a or b for a, b in zip(layers.tied[:-1], together, strict=True)]
        plain = tuple(replace(layer, t_fb=None) for layer in layers.layers)
        return replace(layers, layers=plain, tied=(*tied, False))

    def _together(self, before: LayerKind, after: LayerKind) -> bool:
        if self.any_order:  # a loss that no module computes is no stage
            return after is LayerKind.LOSS
        part = {LayerKind.HEAD: LayerKind.LOSS}
        return part.get(before, before) is part.get(after, after) is not LayerKind.BLOCK

    def plans(
        self,
        given: Profile | LayeredProfile,
        microbatches: int,
        spec: PlacementSpec,
        options: SolveOptions,
        **limits: Any,
    ) -> list[FamilyPlan]:
        """The best of each of its own schedules that has the placement ``spec``, in a share of the
        time where any order comes after it."""
        share = options.budget.share(OWN_SHARE if self.any_order else 1.0)
        stop = FirstOf(share, options.should_stop)
        shares: Sequence[int] = CUTS if spec.chunks is None else (spec.chunks,)
        if isinstance(given, Profile) and given.num_stages != given.ranks:
            shares = (given.num_stages // given.ranks,)
        return [
            _plan(name, given, chunks, microbatches, stop, **limits)
            for chunks in shares
            for name in (self.families if chunks == 1 else [f"{INTERLEAVED}:{chunks}"])
            if spec.name == AUTO or (spec.chunks == chunks and spec.name != V)
        ]


def _plan(
    name: str,
    given: Profile | LayeredProfile,
    chunks: int,
    microbatches: int,
    stop: StoppingCriterion,
    **limits: Any,
) -> FamilyPlan:
    if name.startswith(INTERLEAVED) and microbatches % given.ranks:
        return FamilyPlan(name, why_not=f"needs a multiple of {given.ranks} microbatches")
    if isinstance(given, LayeredProfile):
        stages = chunks * given.ranks
        return best_family_cut(name, given, stages, microbatches, stop=stop, **limits)
    del limits["rules"]
    try:
        schedule = build_family(name, given, microbatches, **limits)
    except (InputError, InfeasibleError) as error:
        return FamilyPlan(name, why_not=str(error).removeprefix(f"{name}: "))
    if overfull(schedule):
        return FamilyPlan(name, why_not="device_memory is too small")
    return FamilyPlan(name, schedule, iteration_time(schedule))


def find_system(name: str) -> System:
    """Raises InputError for a system that is not known."""
    check_choice("for_", name, *SYSTEMS)
    return SYSTEMS[name]


def answer_for(
    system: System, plans: Sequence[FamilyPlan], search: CachedSearch, free: Answer | None
) -> Answer:
    """The best of the system's own schedules and of ``free``, the best of any order where it runs
    that.

    Raises NothingFits where there is none.
    """
    entries = [*([] if free is None else [_any_order(free)]), *map(_entry, plans)]
    best = min(plans, key=lambda plan: plan.cost, default=FamilyPlan(""))
    if free is None and best.schedule is None:
        none = {"for": {"system": system.name, "schedules": entries}}
        raise NothingFits(f"nothing that {system.name} runs fits", _table(entries), none)
    if free is not None and free.cost <= best.cost:
        schedule, cost = free.schedule, free.cost
        chosen = entries[0]["schedule"]
    else:
        assert best.schedule is not None
        schedule, cost, chosen = best.schedule, best.cost, best.family
    bounds = [plan.bound for plan in plans if plan.bound is not None]
    bound = min(bounds) if free is None else free.lower_bound
    gap = gap_between(cost, bound)
    facts: dict[str, Any] = {
        "system": system.name,
        "lower_bound": bound,
        "gap": gap,
        "schedules": entries,
    }
    line = f"of all schedules that {system.name} runs: at most {percent(gap)} from the best"
    if not (system.any_order or schedule.problem.profile.stages[0].layers):
        line += f"\nnote: a {system.name} layout needs a profile by layers (profile --layers)"
    words = [free.words] if free is not None and free.words else []
    return Answer(
        schedule,
        search,
        cost,
        bound,
        tuple(_candidate(entry, chosen) for entry in entries),
        search.stopped,
        ({} if free is None else free.facts) | {"for": facts},
        "\n\n".join([*words, f"{_table(entries)}\n{line}"]),
    )


def _entry(plan: FamilyPlan) -> dict[str, Any]:
    return {
        "schedule": plan.family,
        "cost": None if plan.schedule is None else plan.cost,
        "lower_bound": plan.bound,
        "reason": plan.why_not,
    }


def _any_order(free: Answer) -> dict[str, Any]:
    name = f"any order, {free.schedule.problem.placement.name}"
    return {
        "schedule": name,
        "cost": free.cost,
        "lower_bound": free.lower_bound,
        "reason": None,
    }


def _candidate(entry: dict[str, Any], chosen: str) -> Candidate:
    reason = None if entry["schedule"] == chosen else entry["reason"] or "costs more"
    return Candidate(entry["schedule"], entry["cost"], entry["lower_bound"], reason)


def _table(entries: Sequence[dict[str, Any]]) -> str:
    def shown(value: float | None) -> str:
        return "-" if value is None else duration(value)

    rows = [
        [each["schedule"], shown(each["cost"]), shown(each["lower_bound"]), each["reason"] or ""]
        for each in entries
    ]
    return table(["schedule", "found", "bound", ""], rows)


ROUND = (PlacementKind.LINEAR, PlacementKind.INTERLEAVED)
SYSTEMS = {
    "megatron": System("Megatron", ("1f1b",), ROUND, any_order=False),
    "torchtitan": System(
        "torchtitan", ("gpipe", "1f1b"), (*ROUND, PlacementKind.V), any_order=True
    ),
}
