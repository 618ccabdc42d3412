"""``optimize --for``: the best schedule that another training system can run.

Megatron-LM runs 1F1B, or interleaved 1F1B with K stages per rank, on any layout
(``--pipeline-model-parallel-layout``). torchtitan runs any order of F, B, W and BW from a CSV file,
with stages placed round-robin or as a V.
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
from pipeloom.solver.placement.search import cuts, overfull

from ..inputs.placement_spec import AUTO, PlacementSpec
from ..inputs.problem_setup import Terms
from ..results.candidates import COSTS_MORE, Candidate, candidates_table, over_all
from ..results.result import OPTIMIZER, NothingFits, Result
from ..solving.search import Search
from .family_cut import best_family_cut
from .layers import stages_of, stages_table
from .placements import assumed_cut


@dataclass(frozen=True, slots=True)
class System:
    """A training system. ``kinds``: the kinds of placements that it supports. ``any_order``:
    whether it runs any order of F, B, W and BW; otherwise it runs 1F1B and interleaved 1F1B."""

    name: str
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
    layers are cut into all possible numbers or, if P does not divide ``microbatches``, so that
    interleaved 1F1B is impossible, into one.
    """
    if isinstance(given, Profile) and not _is_cut(given):
        return (given.num_stages // given.ranks,)
    if spec.chunks is not None:
        return (spec.chunks,)
    if isinstance(given, Profile):
        return cuts(given)
    most = 1 if microbatches % given.ranks else _most(given)
    return range(1, max(1, most) + 1)


def _is_cut(profile: Profile) -> bool:
    """Return whether the profile has one stage per rank; then stages may be cut into several."""
    return profile.num_stages == profile.ranks


def _most(layers: LayeredProfile) -> int:
    """Return the largest number of stages per rank into which the layers can be cut."""
    pieces = len(layers.layers) - sum(layers.tied)
    return min(pieces, layers.cluster.max_stages or pieces) // layers.ranks


def best_1f1b(
    system: System,
    given: Profile | LayeredProfile,
    terms: Terms,
    search: Search,
    spec: PlacementSpec,
) -> Result:
    """Return the best schedule of 1F1B and interleaved 1F1B, for a system that runs no other order
    of ops. Raises NothingFits if no schedule fits."""
    if isinstance(given, Profile) and spec.name != AUTO:
        spec.place(given, terms.where)  # refuses another number of stages
    plans = _plans(given, terms, spec, search.options)
    best = min(plans, key=_cost)
    candidates = tuple(_candidate(one, best) for one in plans)
    table, facts = candidates_table("schedule", candidates), dict[str, Any]()
    if best.planned is None:
        raise NothingFits(f"no schedule of {system.name} fits", table, candidates)
    bound = min(one.lower_bound for one in plans if one.lower_bound is not None)
    covers = f"all {system.name} schedules of these kinds"
    words = [f"{table}\n{over_all(covers, best.schedule, bound)}"]
    if isinstance(given, LayeredProfile):
        words = [stages_table(best.schedule), *words]
        facts = {"partition": {"parts": stages_of(best.schedule.problem)}}
    else:
        words.append(f"note: a {system.name} layout needs a profile by layers (profile --layers)")
    return replace(
        best,
        name=OPTIMIZER,
        scheme=OPTIMIZER,
        lower_bound=bound,
        bound=covers,
        candidates=candidates,
        assumed=None if isinstance(given, LayeredProfile) else assumed_cut(given, best.schedule),
        facts=facts,
        words="\n\n".join(words),
        stopped=search.stopped,
    )


def _plans(
    given: Profile | LayeredProfile, terms: Terms, spec: PlacementSpec, options: SolveOptions
) -> list[Result]:
    """Return a result for 1F1B, and for interleaved 1F1B with each number of stages per rank, with
    the placement ``spec``: the best schedule, or the reason why there is none."""
    budget, found = options.budget, list[Result]()
    tried = _chunks(given, terms.microbatches, spec)
    for at, chunks in enumerate(tried):
        each, beat = budget.part(len(tried) - at), min(map(_cost, found), default=inf)
        search = {"stop": FirstOf(each, options.should_stop), "work": each.work, "beat": beat}
        found.append(_plan(given, chunks, terms, search))
        budget.work.spend(each.work.used)
    return found


def _plan(
    given: Profile | LayeredProfile, chunks: int, terms: Terms, search: dict[str, Any]
) -> Result:
    name = "1f1b" if chunks == 1 else f"interleaved-1f1b:{chunks}"
    if chunks > 1 and terms.microbatches % given.ranks:
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


def _candidate(one: Result, best: Result) -> Candidate:
    if one.planned is None:
        return Candidate(one.name, None, one.lower_bound, one.refusal)
    return Candidate(one.name, one.cost, one.lower_bound, None if one is best else COSTS_MORE)


ROUND = (PlacementKind.LINEAR, PlacementKind.INTERLEAVED)
SYSTEMS = {
    "megatron": System("Megatron", ROUND, any_order=False),
    "torchtitan": System("torchtitan", (*ROUND, PlacementKind.V), any_order=True),
}
