"""``optimize --for``: the best schedule that another training system can run.

Megatron-LM runs 1F1B, or interleaved 1F1B with K stages per rank, on any layout
(``--pipeline-model-parallel-layout``). torchtitan runs the classes of torch.distributed.pipelining,
of which GPipe, 1F1B and Interleaved1F1B run exactly the ops of the families here. From a CSV file
it runs any order of F, B, W and BW, with stages placed round-robin or as a V.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from typing import Any

from pipeloom.compiler.exporters.megatron_layout import check_layers
from pipeloom.ir.errors import InfeasibleError, InputError
from pipeloom.ir.model.layered_profile import LayeredProfile
from pipeloom.ir.model.layers import LayerKind
from pipeloom.ir.model.placement import PlacementKind
from pipeloom.ir.model.profile import Profile
from pipeloom.solver.core.options import SolveOptions
from pipeloom.solver.core.schedule_cost import iteration_time
from pipeloom.solver.core.stopping import FirstOf
from pipeloom.solver.families import build_family
from pipeloom.solver.partition.candidate_pool import Way
from pipeloom.solver.placement.search import CUTS, cuts, overfull

from ..inputs.placement_spec import AUTO, PlacementSpec
from ..inputs.problem_setup import Terms
from ..results.candidates import COSTS_MORE, Candidate, candidates_table, over_all
from ..results.result import OPTIMIZER, NothingFits, Result
from ..solving.search import Search
from .family_cut import best_family_cut
from .layers import best_of_cuts, stages_of, stages_table
from .placements import assumed_cut, best_of_placements, one_placement

OWN_SHARE = 0.1
"""Share of the time for a system's own schedules, if the system also runs any other order of
ops."""
INTERLEAVED, V = "interleaved-1f1b", "v"


@dataclass(frozen=True, slots=True)
class System:
    """A training system, with the schedules that it can run.

    Its own schedules are those of ``families``, which have one stage per rank and an order of ops
    that does not depend on the cut, and interleaved 1F1B. ``kinds``: the kinds of placements that
    it supports. ``any_order``: whether it also runs any other order of F, B, W and BW.
    """

    name: str
    families: tuple[str, ...]
    kinds: tuple[PlacementKind, ...]
    any_order: bool

    def checked(self, spec: PlacementSpec) -> System:
        """Return the system itself, which supports the placement ``spec``.

        Raises InputError if it does not.
        """
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
        """Return the profile without what the system does not support, such as fused pairs.

        ``spec``: the requested placement. ``where``: the profile's name in messages. Raises
        InputError if the system cannot run the stages or layers, or if there is a single rank and
        ``spec`` puts several stages on it.
        """
        found: Profile | LayeredProfile
        if isinstance(given, LayeredProfile):
            found = self._cuttable(given, where)
        else:
            found = self._plain(given, where)
        if given.ranks == 1 and spec.chunks not in (None, 1):
            raise InputError(
                f"placement: expected linear, as {self.name} interleaves only on several ranks, "
                f"got {spec.name!r}"
            )
        return found

    def _plain(self, profile: Profile, where: str) -> Profile:
        """Return the profile by stages without fused pairs.

        ``where``: the profile's name in messages. Raises InputError if the number of stages is no
        multiple of the number of ranks, or if a single rank has several stages.
        """
        stages, ranks = profile.num_stages, profile.ranks
        if stages % ranks or stages > ranks == 1:
            expected = "1, as there is one rank," if ranks == 1 else f"a multiple of {ranks}"
            raise InputError(f"{where}: stages: expected {expected} for {self.name}, got {stages}")
        return _one_alone(profile).changed(lambda stage: replace(stage, t_fb=None))

    def _cuttable(self, layers: LayeredProfile, where: str) -> LayeredProfile:
        """Return the profile by layers without fused pairs, in which no cut is allowed between
        layers that the system requires in one stage.

        ``where``: the profile's name in messages. Raises InputError if the system has no names for
        the layers.
        """
        if not self.any_order:
            check_layers([stage.layers[0] for stage in layers.layers], f"{where}: layers")
        kinds = pairwise(layer.layers[0].kind for layer in layers.layers)
        together = [self._together(a, b) for a, b in kinds]
        tied = [a or b for a, b in zip(layers.tied[:-1], together, strict=True)]
        plain = tuple(replace(layer, t_fb=None) for layer in layers.layers)
        return LayeredProfile(plain, (*tied, False), _one_alone(layers.cluster))

    def _together(self, before: LayerKind, after: LayerKind) -> bool:
        if self.any_order:  # a loss has no module, so it cannot be a stage of its own
            return after is LayerKind.LOSS
        part = {LayerKind.HEAD: LayerKind.LOSS}
        return part.get(before, before) is part.get(after, after) is not LayerKind.BLOCK

    def plans(
        self,
        given: Profile | LayeredProfile,
        terms: Terms,
        spec: PlacementSpec,
        options: SolveOptions,
    ) -> list[Result]:
        """Return a result for each kind of the system's own schedules with the placement ``spec``.

        A result has the best schedule of its kind, or the reason why there is none. If the system
        runs any order of ops, these searches together get the share :data:`OWN_SHARE` of the time;
        otherwise all of it.
        """
        budget = options.budget.share(OWN_SHARE if self.any_order else 1.0)
        names = self._names(given, terms.microbatches, spec)
        found: list[Result] = []
        for at, (name, chunks) in enumerate(names):
            each, beat = budget.part(len(names) - at), min(map(_cost, found), default=inf)
            search = {"stop": FirstOf(each, options.should_stop), "work": each.work, "beat": beat}
            found.append(_plan(name, given, chunks, terms, search))
            budget.work.spend(each.work.used)
        return found

    def _names(
        self, given: Profile | LayeredProfile, microbatches: int, spec: PlacementSpec
    ) -> list[tuple[str, int]]:
        """Return the system's own schedules with the placement ``spec``, as pairs: the name, and
        the number of stages per rank."""
        return [
            (name, chunks)
            for chunks in _chunks(given, microbatches, spec)
            for name in (self.families if chunks == 1 else [f"{INTERLEAVED}:{chunks}"])
            if spec.name == AUTO or (spec.chunks == chunks and spec.name != V)
        ]


def _one_alone(profile: Profile) -> Profile:
    """Return the profile; if it has a single rank, with ``max_stages`` set to 1, as no system runs
    several stages on a single rank."""
    return replace(profile, max_stages=1) if profile.ranks == 1 else profile


def _chunks(
    given: Profile | LayeredProfile, microbatches: int, spec: PlacementSpec
) -> Sequence[int]:
    """Return the numbers of stages per rank to try.

    A profile with several stages per rank keeps their number. For other profiles it is the number
    that ``spec`` requests. If it requests none, stages are cut into the numbers of :func:`.cuts`;
    layers are cut into all possible numbers or, if interleaved 1F1B is impossible because P does
    not divide ``microbatches``, into those of :data:`.CUTS`.
    """
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
    """Return whether the profile has one stage per rank; then stages may be cut into several."""
    return profile.num_stages == profile.ranks


def _most(layers: LayeredProfile) -> int:
    """Return the largest number of stages per rank into which the layers can be cut."""
    pieces = len(layers.layers) - sum(layers.tied)
    return min(pieces, layers.cluster.max_stages or pieces) // layers.ranks


def _plan(
    name: str, given: Profile | LayeredProfile, chunks: int, terms: Terms, search: dict[str, Any]
) -> Result:
    if name.startswith(INTERLEAVED) and terms.microbatches % given.ranks:
        return Result(name, why_not=f"needs a multiple of {given.ranks} microbatches")
    if isinstance(given, LayeredProfile):
        return best_family_cut(name, given, chunks * given.ranks, terms, **search)
    try:
        schedule = build_family(name, given, terms.microbatches, **terms.limits)
    except (InputError, InfeasibleError) as error:
        return Result.refused(name, error)
    if overfull(schedule):
        return Result(name, why_not="device_memory is too small")
    return Result(name, schedule, lower_bound=iteration_time(schedule))


def _cost(plan: Result) -> float:
    return inf if plan.planned is None else plan.cost


def best_for(
    system: System,
    given: Profile | LayeredProfile,
    terms: Terms,
    search: Search,
    spec: PlacementSpec,
) -> Result:
    """Return the best of the system's own schedules and, if the system runs any order of ops, of
    the optimizer's schedules for the placements that the system supports.

    The lower bound covers all schedules of the kinds that are compared. Raises NothingFits if no
    schedule fits.
    """
    plans = system.plans(given, terms, spec, search.options)
    free, first = None, list[Result]()
    if system.any_order:
        free = _any_order(given, terms, search, spec)
        name = f"any order, best: {free.schedule.problem.placement.name}"
        first = [Result(name, free.schedule, lower_bound=free.least_bound)]
    compared = [*first, *plans]
    best = min(compared, key=_cost)
    candidates = tuple(_candidate(one, best) for one in compared)
    table = candidates_table("schedule", candidates)
    if best.planned is None:
        what = f"no schedule of {system.name} fits"
        raise NothingFits(what, table, candidates, facts={"for": system.name})
    bound = min(one.lower_bound for one in compared if one.lower_bound is not None)
    covers = f"all {system.name} schedules of these kinds"
    words = [f"{table}\n{over_all(covers, best.schedule, bound)}"]
    facts: dict[str, Any] = {"for": system.name}
    assumed = None
    if free is not None and best is first[0]:
        words, facts = [free.words, *words], free.facts | facts
    elif isinstance(given, LayeredProfile):
        words = [stages_table(best.schedule), *words]
        facts |= {"partition": {"parts": stages_of(best.schedule.problem)}}
    if isinstance(given, Profile):
        assumed = assumed_cut(given, best.schedule)
        if not system.any_order:
            words.append(
                f"note: a {system.name} layout needs a profile by layers (profile --layers)"
            )
    return replace(
        best,
        name=OPTIMIZER,
        scheme=OPTIMIZER,
        lower_bound=bound,
        bound=covers,
        candidates=candidates,
        assumed=assumed,
        facts=facts,
        words="\n\n".join(filter(None, words)),
        stopped=search.stopped,
    )


def _candidate(one: Result, best: Result) -> Candidate:
    if one.planned is None:
        return Candidate(one.name, None, one.lower_bound, one.refusal)
    return Candidate(one.name, one.cost, one.lower_bound, None if one is best else COSTS_MORE)


def _any_order(
    given: Profile | LayeredProfile, terms: Terms, search: Search, spec: PlacementSpec
) -> Result:
    if isinstance(given, LayeredProfile):
        return best_of_cuts(given, terms, search, spec, Way.JOINT)
    if spec.name == AUTO:
        return best_of_placements(given, terms, search, 1)
    return one_placement(given, terms, search, spec)


ROUND = (PlacementKind.LINEAR, PlacementKind.INTERLEAVED)
SYSTEMS = {
    "megatron": System("Megatron", ("1f1b",), ROUND, any_order=False),
    "torchtitan": System(
        "torchtitan", ("gpipe", "1f1b"), (*ROUND, PlacementKind.V), any_order=True
    ),
}
