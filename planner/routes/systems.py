"""``optimize --for``: the best schedule that another system can run.

Megatron-LM runs 1F1B, or interleaved 1F1B with K stages per rank, on any layout
(``--pipeline-model-parallel-layout``). torchtitan runs the classes of torch.distributed.pipelining,
of which GPipe, 1F1B and Interleaved1F1B have exactly the ops of our families. From a CSV it runs
any order of F, B, W and BW, with stages placed round-robin or as a V.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf, isfinite
from typing import Any

from pipeloom.compiler.exporters.megatron_layout import check_layers
from pipeloom.ir.errors import InfeasibleError, InputError
from pipeloom.ir.model.layered_profile import LayeredProfile
from pipeloom.ir.model.layers import LayerKind
from pipeloom.ir.model.placement import PlacementKind
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.model.schedule import gap_between
from pipeloom.report.summaries import from_optimal
from pipeloom.solver.core.options import SolveOptions
from pipeloom.solver.core.schedule_cost import iteration_time
from pipeloom.solver.core.stopping import FirstOf, WorkLimit
from pipeloom.solver.families import build_family
from pipeloom.solver.partition.candidate_pool import Way
from pipeloom.solver.placement.search import CUTS, cuts, overfull

from ..explain.answer import Answer, NothingFits
from ..inputs.placement_spec import AUTO, PlacementSpec
from ..inputs.problem_setup import Terms
from ..results.candidates import beyond_bounds, candidates_of, candidates_table
from ..solving.search import Search
from .family_cut import FamilyPlan, best_family_cut, bound_from
from .layers import best_of_cuts, stages_of, stages_table
from .placements import best_of_placements, one_placement, with_cut

OWN_SHARE = 0.1
"""Share of the time for a system's own schedules, if it also runs any other order."""
INTERLEAVED, V = "interleaved-1f1b", "v"


@dataclass(frozen=True, slots=True)
class System:
    """A system with its own schedules: ``families`` with one stage per rank, and interleaved 1F1B.

    The order of ops of ``families`` does not depend on the cut. ``kinds``: its kinds of placements;
    ``any_order``: it also runs any other order of F, B, W and BW.
    """

    name: str
    families: tuple[str, ...]
    kinds: tuple[PlacementKind, ...]
    any_order: bool

    def checked(self, spec: PlacementSpec) -> System:
        """The system itself. Raises InputError for a placement that it does not support."""
        kinds = [kind.value for kind in self.kinds]
        if spec.name != AUTO and spec.name.partition(":")[0] not in kinds:
            raise InputError(
                f"placement: expected {' or '.join(kinds)}, as {self.name} runs them, got "
                f"{spec.name!r}"
            )
        return self

    def takes(
        self, given: Profile | LayeredProfile, spec: PlacementSpec, where: str
    ) -> Profile | LayeredProfile:
        """The profile as the system runs it. Raises InputError, with ``where`` as the profile's
        name, if the system cannot run it, or for several stages on a single rank, which is not a
        pipeline."""
        found: Profile | LayeredProfile
        if isinstance(given, LayeredProfile):
            found = self._cuttable(given, where)
        else:
            found = self._plain(given, where)
        if given.ranks == 1 and spec.chunks not in (None, 1):
            raise InputError(
                f"placement: expected linear, as {self.name} interleaves on several ranks alone, "
                f"got {spec.name!r}"
            )
        return found

    def _plain(self, profile: Profile, where: str) -> Profile:
        """The profile without fused pairs. Raises InputError, with ``where`` as the profile's name,
        unless ranks have the same number of stages."""
        stages, ranks = profile.num_stages, profile.ranks
        if stages % ranks or stages > ranks == 1:
            expected = "1, as there is one rank," if ranks == 1 else f"a multiple of {ranks}"
            raise InputError(f"{where}: stages: expected {expected} for {self.name}, got {stages}")
        return _one_alone(profile).changed(lambda stage: replace(stage, t_fb=None))

    def _cuttable(self, layers: LayeredProfile, where: str) -> LayeredProfile:
        """The layers without fused pairs, tied together if the system requires them in one stage.

        Raises InputError, with ``where`` as the profile's name, if the system cannot name the
        layers.
        """
        if not self.any_order:
            check_layers([stage.layers[0] for stage in layers.layers], f"{where}: layers")
        kinds = pairwise(layer.layers[0].kind for layer in layers.layers)
        together = [self._together(a, b) for a, b in kinds]
        tied = [a or b for a, b in zip(layers.tied[:-1], together, strict=True)]
        plain = tuple(replace(layer, t_fb=None) for layer in layers.layers)
        return LayeredProfile(plain, (*tied, False), _one_alone(layers.cluster))

    def _together(self, before: LayerKind, after: LayerKind) -> bool:
        if self.any_order:  # a loss without a module cannot be a stage
            return after is LayerKind.LOSS
        part = {LayerKind.HEAD: LayerKind.LOSS}
        return part.get(before, before) is part.get(after, after) is not LayerKind.BLOCK

    def plans(
        self,
        given: Profile | LayeredProfile,
        terms: Terms,
        spec: PlacementSpec,
        options: SolveOptions,
    ) -> list[FamilyPlan]:
        """The best plan for each of its own schedules with the placement ``spec``. If the system
        runs any order, they get a share of the time."""
        budget = options.budget.share(OWN_SHARE if self.any_order else 1.0)
        names = self._names(given, terms.microbatches, spec)
        found: list[FamilyPlan] = []
        for at, (name, chunks) in enumerate(names):
            each, beat = budget.part(len(names) - at), min((p.cost for p in found), default=inf)
            search = {"stop": FirstOf(each, options.should_stop), "work": each.work, "beat": beat}
            found.append(_plan(name, given, chunks, terms, search))
            budget.work.spend(each.work.used)
        return found

    def other_bounds(
        self, given: Profile | LayeredProfile, terms: Terms, spec: PlacementSpec, beat: float
    ) -> dict[str, float]:
        """The lower bounds on its own schedules with other placements than ``spec``; for a profile
        by stages, their costs."""
        at_once = {"stop": lambda: True, "work": WorkLimit(), "beat": beat}
        own = self._names(given, terms.microbatches, spec)
        plans = [
            _plan(name, given, chunks, terms, at_once)
            for name, chunks in self._names(given, terms.microbatches, PlacementSpec.of(AUTO))
            if (name, chunks) not in own
        ]
        return {plan.family: plan.bound for plan in plans if plan.bound is not None}

    def _names(
        self, given: Profile | LayeredProfile, microbatches: int, spec: PlacementSpec
    ) -> list[tuple[str, int]]:
        """Its own schedules with the placement ``spec``, and their stages per rank."""
        return [
            (name, chunks)
            for chunks in _chunks(given, microbatches, spec)
            for name in (self.families if chunks == 1 else [f"{INTERLEAVED}:{chunks}"])
            if spec.name == AUTO or (spec.chunks == chunks and spec.name != V)
        ]

    def unsearched(
        self, given: Profile | LayeredProfile, microbatches: int, spec: PlacementSpec
    ) -> list[FamilyPlan]:
        """The bound for more stages per rank than are searched; empty if there are none. A profile
        by stages can be cut evenly into any number; one by layers only matters if the system runs
        any order."""
        more = max(CUTS) + 1
        if isinstance(given, Profile):
            most = given.max_stages
            there = _is_cut(given) and (most is None or most >= more * given.ranks)
        else:
            there = self.any_order and _most(given) >= more
        runs = self.any_order or microbatches % given.ranks == 0
        if spec.name != AUTO or not there or not runs:
            return []
        what = f"any order, {PlacementKind.INTERLEAVED.value}" if self.any_order else INTERLEAVED
        bound = bound_from(given, more, microbatches)
        return [FamilyPlan(f"{what}:{more} or more", bound=bound, why_not="not searched")]


def _one_alone(profile: Profile) -> Profile:
    """The profile; a single rank has a single stage, as no system runs several there."""
    return replace(profile, max_stages=1) if profile.ranks == 1 else profile


def _chunks(
    given: Profile | LayeredProfile, microbatches: int, spec: PlacementSpec
) -> Sequence[int]:
    """The numbers of stages per rank: the requested one, or all that the layers or cuts of stages
    allow."""
    if isinstance(given, Profile) and not _is_cut(given):
        return (given.num_stages // given.ranks,)
    if spec.chunks is not None:
        return (spec.chunks,)
    if isinstance(given, Profile):
        return cuts(given)
    if microbatches % given.ranks:
        return CUTS
    return range(1, max(1, _most(given)) + 1)


def _is_cut(profile: Profile) -> bool:
    """Whether its stages, one per rank, may be cut into several."""
    return profile.num_stages == profile.ranks


def _most(layers: LayeredProfile) -> int:
    """The largest number of stages per rank into which the layers can be cut."""
    pieces = len(layers.layers) - sum(layers.tied)
    return min(pieces, layers.cluster.max_stages or pieces) // layers.ranks


def _plan(
    name: str, given: Profile | LayeredProfile, chunks: int, terms: Terms, search: dict[str, Any]
) -> FamilyPlan:
    if name.startswith(INTERLEAVED) and terms.microbatches % given.ranks:
        return FamilyPlan(name, why_not=f"needs a multiple of {given.ranks} microbatches")
    if isinstance(given, LayeredProfile):
        return best_family_cut(name, given, chunks * given.ranks, terms, **search)
    try:
        schedule = build_family(name, given, terms.microbatches, **terms.limits)
    except (InputError, InfeasibleError) as error:
        return FamilyPlan(name, why_not=str(error).removeprefix(f"{name}: "))
    if overfull(schedule):
        return FamilyPlan(name, why_not="device_memory is too small")
    return FamilyPlan(name, schedule, iteration_time(schedule))


def best_for(
    system: System,
    given: Profile | LayeredProfile,
    terms: Terms,
    search: Search,
    spec: PlacementSpec,
) -> Answer:
    """The best of the system's own schedules; if the system runs any order, also the optimizer's
    for its placements. The bound also covers those that are not searched.

    Raises NothingFits if there is none.
    """
    plans = system.plans(given, terms, spec, search.options)
    unsearched = system.unsearched(given, terms.microbatches, spec)
    free = _any_order(given, terms, search, spec) if system.any_order else None
    entries = [_entry(plan.family, plan.cost, plan.bound, plan.why_not) for plan in plans]
    entries += [_entry(each.family, inf, each.bound, each.why_not) for each in unsearched]
    best = min(plans, key=lambda plan: plan.cost, default=FamilyPlan(""))
    chosen, schedule = best.family, best.schedule
    # free's bound covers the placements of plans
    bounded = [*(plans if free is None else ()), *unsearched]
    bounds = [plan.bound for plan in bounded if plan.bound is not None]
    if free is not None:
        bounds.append(free.least_bound)
        name = f"any order, best: {free.schedule.problem.placement.name}"
        entries.insert(0, _entry(name, free.cost, free.least_bound))
        if free.cost <= best.cost:
            chosen, schedule = name, free.schedule
    shown = candidates_table("schedule", entries)
    if schedule is None:
        facts = {"for": {"system": system.name, "schedules": entries}}
        proven = all(entry["lower_bound"] is None for entry in entries)
        which = f"that {system.name} runs" if proven else f"found that {system.name} runs and"
        raise NothingFits(f"nothing {which} fits", shown, facts)
    bound, layers = min(bounds), schedule.problem.profile.stages[0].layers
    gap = gap_between(iteration_time(schedule), bound)
    known = from_optimal(gap) + beyond_bounds(schedule)
    line = f"over all schedules that {system.name} runs: {known}"
    if gap > 0 and any(plan.bound == bound for plan in unsearched):
        line += " (more stages per rank were not searched)"
    if not (system.any_order or layers):
        line += f"\nnote: a {system.name} layout needs a profile by layers (profile --layers)"
    words, facts = f"{shown}\n{line}", dict[str, Any]()
    if free is not None and schedule is free.schedule:
        words, facts = "\n\n".join(filter(None, [free.words, words])), free.facts
    elif layers:
        words, parts = f"{stages_table(schedule)}\n\n{words}", stages_of(schedule.problem)
        facts = {"partition": {"placement": schedule.problem.placement.name, "parts": parts}}
    own = {"system": system.name, "lower_bound": bound, "gap": gap, "schedules": entries}
    more = {"lower_bound": bound, "facts": facts | {"for": own}, "words": words}
    answer = Answer.of(schedule, search, candidates_of("schedule", entries, chosen), **more)
    if isinstance(given, LayeredProfile) or system.any_order:
        return answer
    return with_cut(answer, given)


def _any_order(
    given: Profile | LayeredProfile, terms: Terms, search: Search, spec: PlacementSpec
) -> Answer:
    if isinstance(given, LayeredProfile):
        return best_of_cuts(given, terms, search, spec, Way.JOINT)
    if spec.name == AUTO:
        return best_of_placements(given, terms, search, 1)
    return one_placement(given, terms, search, spec)


def _entry(
    name: str, cost: float, bound: float | None, reason: str | None = None
) -> dict[str, Any]:
    known = cost if isfinite(cost) else None
    return {"schedule": name, "cost": known, "lower_bound": bound, "reason": reason}


ROUND = (PlacementKind.LINEAR, PlacementKind.INTERLEAVED)
SYSTEMS = {
    "megatron": System("Megatron", ("1f1b",), ROUND, any_order=False),
    "torchtitan": System(
        "torchtitan", ("gpipe", "1f1b"), (*ROUND, PlacementKind.V), any_order=True
    ),
}
