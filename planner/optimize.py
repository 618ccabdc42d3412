"""``optimize``: from a profile and memory limits to the best schedule, with a certified bound."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.layered_profile import LayeredProfile
from pipeloom.ir.model.placement import PlacementKind
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.removed import telling_removed
from pipeloom.solver.core.options import SolveOptions
from pipeloom.solver.core.stopping import NEVER
from pipeloom.solver.partition.candidate_pool import Way
from pipeloom.solver.partition.cuts import Rules

from .explain.answer import Answer
from .explain.candidates import Candidate
from .inputs.documents import Document, Planned
from .inputs.placement_spec import AUTO, BIDIRECTIONAL, PlacementLike, PlacementSpec
from .inputs.problem_setup import (
    ProfileLike,
    ProfileSource,
    Slow,
    check_alike,
    check_choice,
    check_whole,
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
from .partition.systems import System, answer_for, find_system
from .passing.choose import missing_sizes, plan_passing, tell_missing
from .placement.choose import other_bounds, plan_placement, with_cut, with_others
from .solving.cache import ScheduleCache
from .solving.progress import Listener, Note
from .solving.search import CachedSearch, memory_held, too_full

TIME_LIMIT = 20.0
"""Seconds, where none are given."""


@telling_removed
def optimize(
    profile: ProfileLike | ProfileSource,
    microbatches: int | None = None,
    *,
    memory_limit: float | str | None = None,
    objective: str | Objective | None = None,
    passing: str = "activations",
    placement: PlacementLike | None = None,
    for_: str | None = None,
    partition: str | None = None,
    min_layers: int | None = None,
    max_layers: int | None = None,
    recompute: str = "auto",
    offload: str = "auto",
    copies: int | None = None,
    start: Schedule | Planned | Document | None = None,
    solver: str = "auto",
    time_limit: float | None = None,
    work_limit: float | None = None,
    seed: int = 0,
    slow: Slow | str = None,
    cache: str | ScheduleCache | None = None,
    progress: Listener | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Answer:
    """The best schedule found for ``microbatches`` of ``profile``, and how good it is known to be.

    ``microbatches``: as many as the profile has numbers for, where it has one for each.

    ``profile``: stages or layers, as an object, a JSON object or a file of one. ``memory_limit``:
    of the activations on each rank, in the profile's unit of memory, or, where that is bytes, as
    ``"30GB"``; the profile's own by default.
    ``objective``: ``period`` or ``makespan``; by default the makespan where the profile has a
    ``barrier``, else the period. ``passing``: ``activations``, ``weights``, or
    ``auto``. ``placement``: ``auto`` (the default), the best of ``linear``, ``interleaved:K``,
    ``v`` and ``wave:K``, and of ``bidirectional`` where two copies are known to fit; or one of
    these, or the rank of each stage or a file of them. ``for_``: ``megatron`` or ``torchtitan``: of
    the schedules that it runs.
    ``partition``: of a profile by layers, ``joint`` (the default), ``balanced`` or ``even``, with
    at least ``min_layers`` and at most ``max_layers`` in a stage. ``recompute``: ``auto``, ``all``,
    ``none``. ``offload``: ``auto``, ``none``. ``copies``: of a stage's
    weights at most, where the placement is chosen. ``start``: a schedule of as many microbatches on
    the same stages and ranks, whose order of ops is begun with; the placement is its own.
    ``time_limit``: seconds in all, 20 by default.
    ``work_limit``: instead, millions of simulated ops, for each placement; the same seed then gives
    the same schedule. ``slow``: by rank, how many times as long it takes as its profile says; of a
    profile by stages.
    ``cache``: a folder of answers. ``progress`` is told each event, a line of text as ``str``.
    Once ``should_stop`` turns true the best so far is returned.

    Raises InputError for wrong input, where ``--max-layers`` means ``max_layers``, and
    InfeasibleError where nothing fits.
    """
    if isinstance(profile, Problem):
        raise TypeError("profile: expected a profile, got a Problem: pipeloom.solve takes one")
    system = None if for_ is None else find_system(for_)
    source = ProfileSource.of(profile, progress)
    spec = _placement(placement, start, passing)
    cut = source.is_cut(partition=partition, min_layers=min_layers, max_layers=max_layers)
    check_choice("passing", passing, "activations", "weights", "auto")
    check_choice("partition", partition or "joint", "joint", "balanced", "even")
    if system is not None:
        system.check(
            spec,
            passing=None if passing == "activations" else passing,
            partition=None if partition == "joint" else partition,
            recompute="all" if recompute == "all" else None,
            copies=copies,
        )
    _check(passing, spec, recompute, copies, cut=cut)
    if start is not None and (cut or system is not None or spec.name == AUTO or passing == "auto"):
        raise InputError("start: expected a profile by stages, one placement and one passing")
    check_limits(time_limit, work_limit)
    check_whole("seed", seed)
    ranks = slow_of(slow)
    _check_slow(ranks, copies, cut=cut, passing=passing, for_=for_)
    options = SolveOptions(
        solver=solver,
        work_limit=positive("work_limit", work_limit),
        time_limit=positive("time_limit", time_limit) or TIME_LIMIT,
        seed=seed,
        should_stop=should_stop or NEVER,
        recompute_all=recompute == "all",
        memory=memory_held,
    )
    search = CachedSearch.of(options, cache, progress)
    microbatches = source.number(microbatches)
    limits: dict[str, Any] = {"memory_limit": memory_limit_of(memory_limit, source)}
    limits |= {"objective": objective_of(objective, source), "where": source.where}
    if system is not None:
        _check_alike(source, cut, f"--for {for_}")
        given = _given_to(system, source, microbatches, cut=cut)
        limits |= {"placement": spec, "rules": _rules(min_layers, max_layers)}
        return _for_system(system, given, microbatches, search, **limits)
    if cut:
        _check_alike(source, cut, "a cut chosen by optimize")
        layers = layers_of(source, recompute, offload)
        limits |= {"way": Way(partition or "joint"), "rules": _rules(min_layers, max_layers)}
        return _of_layers(layers, microbatches, search, spec, **limits)
    if copies == 2:
        _check_alike(source, cut, "--copies 2")
    stages = stages_of(source, microbatches, recompute, offload)
    if passing == "auto":
        limits |= {"placed": spec.name == AUTO, "copies": copies}
        return plan_passing(stages, microbatches, search, **limits)
    if spec.name == AUTO:
        limits |= {"copies": 1 if options.recompute_all else copies, "slow": ranks}
        return plan_placement(stages, microbatches, search, **limits)
    limits |= {"passing": passing, "slow": ranks, "start": start}
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


def _placement(
    given: PlacementLike | None, start: Schedule | Planned | Document | None, passing: str
) -> PlacementSpec:
    """The placement that is asked for: by itself, or by the schedule that is begun with."""
    if given is not None:
        return PlacementSpec.of(given)
    if passing == "weights":
        return PlacementSpec.of("linear")
    return PlacementSpec.of(AUTO) if start is None else placement_of(start)


def _check_slow(
    slow: Slow, copies: int | None, *, cut: bool, passing: str, for_: str | None
) -> None:
    """Raises InputError where the rank of each stage is not known before the search."""
    if not slow:
        return
    if cut:
        raise InputError("slow: expected a profile by stages, got layers that are to be cut")
    if copies == 2:
        raise InputError("copies: expected 1 with --slow, got 2")
    if for_ is not None or passing != "activations":
        if for_ is not None:
            raise InputError(f"slow: expected none with --for, got it with --for {for_}")
        raise InputError(f"slow: expected each stage on one rank, got --passing {passing}")


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


def positive(name: str, limit: float | None) -> float | None:
    """``limit`` of time or work. Raises InputError, naming the option, where it is not above 0."""
    if limit is not None and not (isinstance(limit, int | float) and limit > 0):
        raise InputError(f"{name}: expected a number > 0, got {limit!r}")
    return limit


def check_limits(time_limit: float | None, work_limit: float | None) -> None:
    """Raises InputError where both are given: work is limited in place of time."""
    if time_limit is not None and work_limit is not None:
        words = f"expected none beside time_limit {time_limit!r}, got {work_limit!r}"
        raise InputError(f"work_limit: {words}: it takes the place of seconds")


def search_limits(
    time_limit: float | None, work_limit: float | None, usual: float
) -> dict[str, float | None]:
    """The limits by name, ``usual`` seconds where none is given. Raises InputError."""
    check_limits(time_limit, work_limit)
    if work_limit is None and time_limit is None:
        time_limit = usual
    return {"time_limit": time_limit, "work_limit": work_limit}


def _rules(least: int | None, most: int | None) -> Rules:
    """How many layers a stage may have. Raises InputError."""
    for name, number in (("min_layers", least), ("max_layers", most)):
        if number is not None and not (isinstance(number, int) and number >= 1):
            raise InputError(f"{name}: expected a whole number from 1 on, got {number!r}")
    if most is not None and most < (least or 1):
        raise InputError(f"max_layers: expected at least --min-layers ({least or 1}), got {most}")
    return Rules(least or 1, most)


def _check(
    passing: str, spec: PlacementSpec, recompute: str, copies: int | None, *, cut: bool
) -> None:
    """Raises InputError where options do not go together."""
    if copies is not None and copies not in (1, 2):
        raise InputError(f"copies: expected 1 or 2, got {copies!r}")
    if recompute == "all" and passing != "activations":
        raise InputError(
            f"passing: expected activations with --recompute all, got {passing!r}: "
            "nothing is recomputed where weights are passed"
        )
    if recompute == "all" and spec.name == BIDIRECTIONAL:
        raise InputError(
            f"recompute: expected none with --placement {spec.name}, where nothing is recomputed, "
            "got 'all'"
        )
    if copies is not None and (cut or spec.name != AUTO):
        where = "a profile by layers" if cut else f"--placement {spec.name}"
        where = "--passing weights" if passing == "weights" else where
        raise InputError(
            "copies: expected it with --placement auto and a profile by stages, "
            f"got {copies} with {where}"
        )
    if cut and passing != "activations":
        raise InputError(
            f"passing: expected activations for a profile by layers, got {passing!r}: cut it "
            "first: the schedule that `optimize` writes without --passing has a profile by stages, "
            "under the key profile"
        )
    if passing == "auto" and spec.name not in {AUTO, "linear"}:
        raise InputError(
            f"placement: expected auto or linear with --passing auto, got {spec.name!r}"
        )
    if spec.name == AUTO and passing == "weights":
        raise InputError("placement: auto is not for --passing weights")


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
