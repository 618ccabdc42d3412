"""``optimize``: from a profile and memory limits to the best schedule, with a certified bound."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from pipeloom.ir.model.layered_profile import LayeredProfile
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
    Terms,
    check_alike,
    layers_of,
    make_problem,
    order_of,
    placement_of,
    stages_of,
)
from .inputs.words import slow_of
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
"""Default time limit, in seconds."""


@takes(OptimizeRequest)
def optimize(request: OptimizeRequest) -> Answer:
    """Find the best schedule for a profile, with a lower bound on the optimum.

    ``profile``: stages or layers, as an object, a JSON object or a file. The other arguments are
    the fields of :class:`.OptimizeRequest`, which are the options of the command.

    Raises InputError for invalid input (its message names options: ``--max-layers`` is
    ``max_layers`` here) and InfeasibleError if no schedule fits.
    """
    if isinstance(request.profile, Problem):
        raise TypeError("profile: expected a profile, got a Problem: pipeloom.solve takes one")
    source, spec = ProfileSource.of(request.profile, request.progress), _placement(request)
    cut, chosen = source.is_cut(**request.cuts), spec.name == AUTO
    slow, every = slow_of(request.slow) or None, request.recompute == "all"
    follows = {"placement": spec.name, "placed": not chosen, "cut": cut, "slow": slow}
    refuse(OPTIMIZE, **vars(request) | follows)
    system = None if request.for_ is None else SYSTEMS[request.for_].checked(spec)
    options = {"solver": request.solver, "recompute_all": every, "memory": memory_held}
    search = request.search(TIME_LIMIT, **options)
    rules = Rules(request.min_layers or 1, request.max_layers)
    terms = Terms.of(request, source, slow=slow, rules=rules)
    _check_alike(request, source, cut)
    if system is not None:
        own = replace(terms, kinds=system.kinds)
        return _for_system(system, source, own, search, spec, cut=cut)
    if cut:
        layers = layers_of(source, request.recompute, request.offload)
        return _of_layers(layers, terms, search, spec, Way(request.partition or "joint"))
    stages = stages_of(source, terms.microbatches, request.recompute, request.offload)
    if request.passing == "auto":
        return plan_passing(stages, terms, search, placed=chosen, copies=request.copies)
    if chosen and request.passing != "weights":
        return plan_placement(stages, terms, search, 1 if every else request.copies)
    passing, start = request.passing, request.start
    return _one_placement(stages, terms, search, spec, passing=passing, start=start)


def _check_alike(request: OptimizeRequest, source: ProfileSource, cut: bool) -> None:
    """Raises InputError if microbatches differ and the request requires them to be identical."""
    for_, copies = request.for_ is not None, request.copies == 2
    asked = {f"--for {request.for_}": for_, "a cut chosen by optimize": cut, "--copies 2": copies}
    what = next((words for words, there in asked.items() if there), None)
    if what is not None:
        layers = source.layers.as_stages if cut else source.stages
        check_alike(layers, f"{source.where}: {'layers' if cut else 'stages'}", what)


def _of_layers(
    layers: LayeredProfile, terms: Terms, search: CachedSearch, spec: PlacementSpec, way: Way
) -> Answer:
    """The best cut of the layers, with its schedule. If a placement is given, adds the bounds of
    the others."""
    answer = plan_partition(layers, terms, search, spec, way)
    if spec.name == AUTO:
        return answer
    return with_others(answer, partial(cut_bounds, layers, terms, spec))


def _one_placement(
    stages: Profile,
    terms: Terms,
    search: CachedSearch,
    spec: PlacementSpec,
    *,
    passing: str = "activations",
    start: Schedule | Planned | Document | None = None,
) -> Answer:
    """The best schedule of one placement; ``start`` is the initial order of ops."""
    problem = make_problem(stages, terms, spec, passing)
    order = None if start is None else order_of(start, problem)
    schedule = search.solve(problem, start=order)
    if (full := too_full(schedule)) is not None:
        words = "a given --placement keeps --memory-limit only; without --placement both are kept"
        search.progress(Note(f"note: {terms.where}: {full}; {words}"))
    cost = schedule.known_timing.iteration_time(problem.objective)
    bound = schedule.known_report.lower_bound
    candidates = (Candidate(problem.placement.name, cost, bound, None),)
    answer = with_cut(Answer.of(schedule, search, candidates), stages)
    if passing == "weights":
        lacking = [each for each in missing_sizes(stages) if each != "activation_bytes"]
        tell_missing(stages, lacking, search, terms.where)
    if passing == "weights" or start is not None:
        return answer
    return with_others(answer, partial(other_bounds, stages, terms, problem.placement))


def _placement(request: OptimizeRequest) -> PlacementSpec:
    """The requested placement: given by name, or taken from the schedule ``start``."""
    if request.placement is not None:
        return PlacementSpec.of(request.placement)
    if request.passing == "weights":
        return PlacementSpec.of("linear")
    return PlacementSpec.of(AUTO) if request.start is None else placement_of(request.start)


def _for_system(
    system: System,
    source: ProfileSource,
    terms: Terms,
    search: CachedSearch,
    spec: PlacementSpec,
    *,
    cut: bool,
) -> Answer:
    """The best of the system's own schedules; if the system runs any order, also the optimizer's
    for its placements."""
    given: Profile | LayeredProfile
    if cut:
        given = system.cuttable(layers_of(source, "none", "none"), source.where)
    else:
        stages = stages_of(source, terms.microbatches, "none", "none")
        given = system.plain(stages, source.where)
    system.check_chunks(spec, given.ranks)
    plans = system.plans(given, terms, spec, search.options)
    unsearched = system.unsearched(given, terms.microbatches, spec)
    if not system.any_order:
        answer = answer_for(system, plans, unsearched, search, None)
        if isinstance(given, Profile):
            answer = with_cut(answer, given)
        others = partial(system.other_bounds, given, terms, spec, answer.cost)
        return answer if spec.name == AUTO else with_others(answer, others)
    if isinstance(given, LayeredProfile):
        free = _of_layers(given, terms, search, spec, Way.JOINT)
    elif spec.name == AUTO:
        free = plan_placement(given, terms, search, 1)
    else:
        free = _one_placement(given, terms, search, spec)
    return answer_for(system, plans, unsearched, search, free)
