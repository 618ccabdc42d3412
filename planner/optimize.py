"""``optimize``: from a profile and memory limits to the best schedule, with a certified bound."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

from pipeloom.ir.model.layered_profile import LayeredProfile
from pipeloom.ir.model.placement import PlacementKind
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.model.schedule import Schedule
from pipeloom.solver.partition.candidate_pool import Way
from pipeloom.solver.partition.cuts import Rules

from .explain.answer import Answer
from .explain.candidates import Candidate
from .inputs.documents import Document, Planned
from .inputs.placement_spec import AUTO, PlacementSpec
from .inputs.problem_setup import (
    ProfileSource,
    Slow,
    check_alike,
    layers_of,
    make_problem,
    objective_of,
    order_of,
    placement_of,
    slowed,
    stages_of,
)
from .inputs.words import memory_limit_of, slow_of
from .partition.joint import other_bounds as cut_bounds
from .partition.joint import plan_partition
from .partition.systems import SYSTEMS, System, answer_for
from .passing.choose import missing_sizes, plan_passing, tell_missing
from .placement.choose import other_bounds, plan_placement, with_cut, with_others
from .requests.exclusions import OPTIMIZE, refuse
from .requests.fields import takes
from .requests.search import OptimizeRequest
from .solving.progress import Note
from .solving.search import CachedSearch, memory_held, too_full

TIME_LIMIT = 20.0
"""Seconds, where none are given."""


@takes(OptimizeRequest)
def optimize(request: OptimizeRequest) -> Answer:
    """The best schedule found for a profile, and how good it is known to be.

    ``profile``: stages or layers, as an object, a JSON object or a file of one. The other arguments
    are the fields of :class:`.OptimizeRequest`, which are the options of the command.

    Raises InputError for wrong input, where ``--max-layers`` means ``max_layers``, and
    InfeasibleError where nothing fits.
    """
    if isinstance(request.profile, Problem):
        raise TypeError("profile: expected a profile, got a Problem: pipeloom.solve takes one")
    source, spec = ProfileSource.of(request.profile, request.progress), _placement(request)
    keys = ("partition", "min_layers", "max_layers")
    cut = source.is_cut(**{key: getattr(request, key) for key in keys})
    slow, placed = slow_of(request.slow) or None, spec.name != AUTO
    follows = {"placement": spec.name, "placed": placed, "cut": cut, "slow": slow}
    refuse(OPTIMIZE, **vars(request) | follows)
    system = SYSTEMS.get(request.for_ or "")
    if system is not None:
        system.check(spec)
    all_of_it = request.recompute == "all"
    options = request.solve_options(
        TIME_LIMIT, solver=request.solver, recompute_all=all_of_it, memory=memory_held
    )
    search = CachedSearch.of(options, request.cache, request.progress)
    microbatches = source.number(request.microbatches)
    limits: dict[str, Any] = {"memory_limit": memory_limit_of(request.memory_limit, source)}
    limits |= {"objective": objective_of(request.objective, source), "where": source.where}
    rules = Rules(request.min_layers or 1, request.max_layers)
    if system is not None:
        _check_alike(source, cut, f"--for {request.for_}")
        given = _given_to(system, source, microbatches, cut=cut)
        limits |= {"placement": spec, "rules": rules}
        return _for_system(system, given, microbatches, search, **limits)
    saved = request.recompute, request.offload
    if cut:
        _check_alike(source, cut, "a cut chosen by optimize")
        limits |= {"way": Way(request.partition or "joint"), "rules": rules}
        return _of_layers(layers_of(source, *saved), microbatches, search, spec, **limits)
    if request.copies == 2:
        _check_alike(source, cut, "--copies 2")
    stages = stages_of(source, microbatches, *saved)
    if request.passing == "auto":
        limits |= {"placed": spec.name == AUTO, "copies": request.copies}
        return plan_passing(stages, microbatches, search, **limits)
    if spec.name == AUTO and request.passing != "weights":
        limits |= {"copies": 1 if all_of_it else request.copies, "slow": slow}
        return plan_placement(stages, microbatches, search, **limits)
    limits |= {"passing": request.passing, "slow": slow, "start": request.start}
    return _one_placement(stages, microbatches, search, spec, **limits)


def _of_layers(
    layers: LayeredProfile,
    microbatches: int,
    search: CachedSearch,
    spec: PlacementSpec,
    *,
    way: Way,
    **limits: Any,
) -> Answer:
    """The best cut and schedule of layers, with the line on other placements where one is given."""
    answer = plan_partition(layers, microbatches, search, placement=spec, way=way, **limits)
    if spec.name == AUTO:
        return answer
    return with_others(answer, partial(cut_bounds, layers, microbatches, spec, **limits))


def _one_placement(
    stages: Profile,
    microbatches: int,
    search: CachedSearch,
    spec: PlacementSpec,
    *,
    where: str,
    passing: str = "activations",
    slow: Slow = None,
    start: Schedule | Planned | Document | None = None,
    kinds: Collection[PlacementKind] = tuple(PlacementKind),
    **limits: Any,
) -> Answer:
    """The best schedule of one placement, or of weights that are passed."""
    asked = {"passing": passing, "placement": spec, "where": where, **limits}
    problem = slowed(make_problem(stages, microbatches, **asked), slow)
    answer = with_cut(_one_problem(problem, search, where, start), stages)
    if passing == "weights":
        lacking = [each for each in missing_sizes(stages) if each != "activation_bytes"]
        tell_missing(stages, lacking, search, where)
        return answer
    if start is not None:
        return answer
    limits |= {"kinds": kinds, "change": partial(slowed, slow=slow), "slow": slow}
    own = problem.placement
    return with_others(answer, partial(other_bounds, stages, microbatches, own, **limits))


def _placement(request: OptimizeRequest) -> PlacementSpec:
    """The placement that is asked for: by itself, or by the schedule that is begun with."""
    if request.placement is not None:
        return PlacementSpec.of(request.placement)
    if request.passing == "weights":
        return PlacementSpec.of("linear")
    return PlacementSpec.of(AUTO) if request.start is None else placement_of(request.start)


def _given_to(
    system: System, source: ProfileSource, microbatches: int, *, cut: bool
) -> Profile | LayeredProfile:
    """The stages, or the layers to be cut, as the system can run them."""
    if cut:
        return system.cuttable(layers_of(source, "none", "none"), source.where)
    return system.plain(stages_of(source, microbatches, "none", "none"), source.where)


def _for_system(
    system: System,
    given: Profile | LayeredProfile,
    microbatches: int,
    search: CachedSearch,
    *,
    placement: PlacementSpec,
    rules: Rules,
    where: str,
    **limits: Any,
) -> Answer:
    """The system's own schedules, and where it runs any order what the optimizer finds for its
    placements."""
    system.check_chunks(placement, given.ranks)
    plans = system.plans(given, microbatches, placement, search.options, rules=rules, **limits)
    unsearched = system.unsearched(given, microbatches, placement)
    if not system.any_order:
        answer = answer_for(system, plans, unsearched, search, None)
        if isinstance(given, Profile):
            answer = with_cut(answer, given)
        asked = {"rules": rules, "beat": answer.cost, **limits}
        others = partial(system.other_bounds, given, microbatches, placement, **asked)
        return answer if placement.name == AUTO else with_others(answer, others)
    limits |= {"where": where, "kinds": system.kinds}
    if isinstance(given, LayeredProfile):
        limits |= {"way": Way.JOINT, "rules": rules}
        free = _of_layers(given, microbatches, search, placement, **limits)
    elif placement.name == AUTO:
        free = plan_placement(given, microbatches, search, copies=1, **limits)
    else:
        free = _one_placement(given, microbatches, search, placement, **limits)
    return answer_for(system, plans, unsearched, search, free)


def _check_alike(source: ProfileSource, cut: bool, what: str) -> None:
    """Raises InputError where microbatches are unlike, which ``what`` does not plan."""
    layers = source.layers.as_stages if cut else source.stages
    check_alike(layers, f"{source.where}: {'layers' if cut else 'stages'}", what)


def _one_problem(
    problem: Problem,
    search: CachedSearch,
    where: str,
    start: Schedule | Planned | Document | None = None,
) -> Answer:
    """One placement: what the optimizer finds for it, from the order of ``start`` if that is
    given."""
    order = None if start is None else order_of(start, problem)
    schedule = search.solve(problem, start=order)
    if (full := too_full(schedule)) is not None:
        words = "a given --placement keeps --memory-limit only; without --placement both are kept"
        search.progress(Note(f"note: {where}: {full}; {words}"))
    cost = schedule.known_timing.iteration_time(problem.objective)
    bound = schedule.known_report.lower_bound
    return Answer.of(schedule, search, (Candidate(problem.placement.name, cost, bound, None),))
