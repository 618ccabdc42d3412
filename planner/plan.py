"""``optimize``: from a profile and memory limits to the best schedule, with a certified bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.problem import Objective, Passing, Problem
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.units import amount
from pipeloom.solver.placement.search import overfull

from .answer import Answer, Candidate, cost_of
from .partition.joint import CutRequest, plan_partition
from .passing.choose import plan_passing
from .placement.choose import plan_placement
from .placement.spec import AUTO, PlacementLike, PlacementSpec
from .problem_setup import ProfileLike, ProfileSource, make_problem, stages_of
from .progress import Listener, Note
from .search import Search


def optimize(
    profile: ProfileLike | ProfileSource,
    microbatches: int,
    *,
    memory_limit: float | None = None,
    objective: str | Objective = Objective.PERIOD,
    passing: str = "activations",
    placement: PlacementLike = "linear",
    partition: str | None = None,
    min_layers: int | None = None,
    max_layers: int | None = None,
    recompute: str = "auto",
    offload: str = "auto",
    copies: int | None = None,
    solver: str = "auto",
    time_limit: float | None = None,
    work_limit: float | None = None,
    seed: int = 0,
    cache: str | None = None,
    progress: Listener | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Answer:
    """The best schedule found for ``microbatches`` of ``profile``, and how good it is known to be.

    ``profile``: stages or layers, as an object, a JSON object or a file of one. ``memory_limit``:
    of the activations on each rank, in the profile's unit of memory; the profile's own by default.
    ``objective``: ``period`` or ``makespan``. ``passing``: ``activations``, ``weights``, or
    ``auto``. ``placement``: ``linear``, ``interleaved:K``, ``v``, ``wave:K``, the rank of each
    stage or a file of them, or ``auto``. ``partition``: of a profile by layers, ``joint`` (the
    default), ``balanced`` or ``even``, with at least ``min_layers`` and at most ``max_layers`` in a
    stage. ``recompute``: ``auto``, ``all``, ``none``. ``offload``: ``auto``, ``none``. ``copies``:
    of a stage's weights at most, where the placement is chosen. ``time_limit``: seconds, 60 by
    default; where it is given and the placement is chosen, of all placements together.
    ``work_limit``: instead, millions of simulated ops; the same seed then gives the same schedule.
    ``cache``: a folder of answers. ``progress`` is told each event, a line of text as ``str``.
    Once ``should_stop`` turns true the best so far is returned.

    Raises InputError for wrong input, where ``--max-layers`` means ``max_layers``, and
    InfeasibleError where nothing fits.
    """
    if isinstance(profile, Problem):
        raise TypeError("profile: expected a profile, got a Problem: pipeloom.solve takes one")
    source, spec = ProfileSource.of(profile, progress), PlacementSpec.of(placement)
    search = Search.of(
        solver=solver,
        time_limit=time_limit,
        work_limit=work_limit,
        seed=seed,
        recompute=recompute,
        cache=cache,
        progress=progress,
        should_stop=should_stop,
    )
    cut = source.is_cut(partition=partition, min_layers=min_layers, max_layers=max_layers)
    _check(passing, spec, recompute, copies, cut=cut)
    limits: dict[str, Any] = {"memory_limit": memory_limit, "objective": Objective(objective)}
    if cut:
        request = CutRequest(partition, min_layers, max_layers, recompute, offload)
        return plan_partition(source, microbatches, spec, request, search, **limits)
    stages = stages_of(source, microbatches, recompute, offload)
    if passing == "auto":
        return plan_passing(stages, microbatches, search, where=source.where, **limits)
    if spec.name == AUTO:
        seconds = "each" if time_limit is None else "seconds"
        limited = {} if work_limit is not None else {seconds: search.time_limit}
        copies = 1 if recompute == "all" else copies
        return plan_placement(
            stages,
            microbatches,
            search,
            limited,
            copies=copies,
            where=source.where,
            **limits,
        )
    problem = make_problem(
        stages, microbatches, passing=passing, placement=spec, where=source.where, **limits
    )
    return _one_problem(problem, search, source.where)


def _check(
    passing: str, spec: PlacementSpec, recompute: str, copies: int | None, *, cut: bool
) -> None:
    """Raises InputError where options do not go together."""
    if recompute == "all" and passing != "activations":
        raise InputError(
            f"passing: expected activations with --recompute all, got {passing!r}: "
            "nothing is recomputed where weights travel"
        )
    if copies is not None and (cut or spec.name != AUTO):
        where = "a profile by layers" if cut else f"--placement {spec.name}"
        raise InputError(
            "copies: expected it with --placement auto and a profile by stages, "
            f"got {copies} with {where}"
        )
    if cut and passing != "activations":
        raise InputError(
            f"passing: expected activations for a profile by layers, got {passing!r}: cut it "
            "first, by `optimize` without --passing"
        )
    if passing == "auto" and spec.name != "linear":
        raise InputError(
            "placement: expected none with --passing auto, which chooses among them, "
            f"got {spec.name!r}"
        )
    if spec.name == AUTO and passing != "activations":
        raise InputError(f"placement: auto is for --passing activations, got {passing!r}")


def _one_problem(problem: Problem, search: Search, where: str) -> Answer:
    """One placement: what the optimizer finds for it."""
    schedule = search.solve(problem)
    _tell_overfull(schedule, search, where)
    assert schedule.report is not None
    bound, placement = schedule.report.lower_bound or 0.0, problem.placement
    name = placement.name or placement.passing.value
    candidate = Candidate(name, cost_of(schedule), bound, None)
    return Answer(schedule, search, bound, (candidate,), search.should_stop())


def _tell_overfull(schedule: Schedule, search: Search, where: str) -> None:
    """Names the fullest rank where stages that stay leave too little of ``device_memory``, which
    nothing kept here."""
    found = overfull(schedule)
    if schedule.problem.placement.passing is not Passing.ACTIVATIONS or found is None:
        return
    rank, held, device = found
    search.progress(
        Note(
            f"note: {where}: device_memory: rank {rank} holds {amount(held)} with the weights, "
            f"gradients and optimizer state of its stages, more than {amount(device)}; one "
            "placement keeps --memory-limit alone, --placement auto keeps both"
        )
    )
