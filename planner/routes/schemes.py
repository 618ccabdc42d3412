"""The schemes among which ``optimize --passing auto`` chooses: passing activations, passing
weights, and FSDP. They are compared in :mod:`.passing`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, product

from pipeloom.ir.cost.simulator import timed
from pipeloom.ir.errors import InputError, InvalidScheduleError
from pipeloom.ir.model.layered_profile import joined
from pipeloom.ir.model.ops import Op, OpKind, pack
from pipeloom.ir.model.placement import Passing, Placement
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.model.schedule import Report, Schedule
from pipeloom.solver.families import FAMILIES, Family, synchronous
from pipeloom.solver.families.base import alternate
from pipeloom.solver.families.weights.fsdp import FSDP, PREFETCHES
from pipeloom.solver.weight_passing.parameters import WeightPassingParameters
from pipeloom.solver.weight_passing.round_orders import rows
from pipeloom.solver.weight_passing.streaming import Route, streamed

from ..inputs.problem_setup import Terms


@dataclass(frozen=True, slots=True)
class Scheme:
    """A scheme: its ``name`` in tables, and its ``problem``.

    ``built``: yields constructed schedules of the problem with their times, which may exceed the
    memory limit. ``share``: the relative share of the time for the optimizer's search; 0 if there
    is nothing to optimize.
    """

    name: str
    problem: Problem
    built: Callable[[Problem], Iterator[Schedule]]
    share: float


def schemes(profile: Profile, terms: Terms) -> list[Scheme]:
    """Return all schemes that apply to the profile. Passing activations applies only if there are
    at least as many stages as ranks."""
    limit = profile.limit_from(terms.memory_limit)

    def pose(placement: Placement) -> Problem:
        return Problem(profile, terms.microbatches, placement, limit, terms.objective)

    apart = pose(Placement.round_robin(profile.ranks))
    found = [Scheme("weights", apart, _weights, 3.0), Scheme("fsdp", apart, _sharded, 0.0)]
    if profile.num_stages >= profile.ranks:
        found.insert(0, Scheme("activations", pose(in_a_row(profile)), _activations, 4.0))
    return found


def in_a_row(profile: Profile) -> Placement:
    """Return the placement with consecutive stages on each rank, in numbers as equal as possible.

    Stages follow each other along the ring of ranks. No activation crosses the link of the ring
    with the longest delay: the first stage is on the rank behind that link. This is rank 0 if the
    link between the last rank and rank 0 is among the slowest.
    """
    ranks, stages = profile.ranks, profile.num_stages
    delays = profile.delays(profile.stages[0].activation_bytes)
    hops = [max(delays[r - 1, r], delays[r, r - 1]) for r in range(ranks)]
    first = max(range(ranks), key=lambda rank: (hops[rank], -rank))
    owners = tuple((first + s * ranks // stages) % ranks for s in range(stages))
    name = "linear" if first == 0 and stages == ranks else f"in a row from rank {first}"
    return Placement.of_stages(owners, name, ranks)


def scheduled_as_one(problem: Problem, schedule: Callable[[Problem], Schedule]) -> Schedule:
    """Return a schedule of a problem in which each rank runs consecutive stages.

    The stages of each rank are merged into one stage, ``schedule`` returns a schedule of the merged
    stages, and each of its ops is replaced by the ops of its parts. If messages take no time, the
    result has the same makespan as the merged stages, and never holds more memory.
    """
    if problem.stages == problem.ranks:
        return schedule(problem)
    owners = problem.placement.owners
    groups = [list(stages) for _, stages in groupby(range(len(owners)), key=owners.__getitem__)]
    stages = tuple(joined([problem.profile.stages[s] for s in group]) for group in groups)
    profile = replace(problem.profile, stages=stages, tied=())
    placement = Placement.of_stages([owners[group[0]] for group in groups], ranks=problem.ranks)
    merged = schedule(replace(problem, profile=profile, placement=placement))
    order = tuple(
        pack(
            Op(op.kind, stage, op.microbatch)
            for op in merged.ops(rank)
            for stage in groups[op.stage][:: 1 if op.kind is OpKind.F else -1]
        )
        for rank in range(problem.ranks)
    )
    found = merged.known_report
    report = Report(problem.objective, found.family, method=found.method)
    return timed(Schedule(problem, order, report=report))


def _activations(problem: Problem) -> Iterator[Schedule]:
    """Yield the schedules of families that do not cut the profile's stages, 1F1B and ZB-H1 also
    with the problem's placement."""
    for family in synchronous():
        with suppress(InputError):
            posed = family.problem(problem.profile, problem.microbatches, None, problem.objective)
            same = posed.profile.num_stages == problem.stages
            if same and posed.placement.passing is Passing.ACTIVATIONS:
                yield _unlimited(family, replace(posed, memory_limit=problem.memory_limit))
    for name, backward in (("1f1b", OpKind.BW), ("zb-h1", OpKind.B)):
        yield scheduled_as_one(problem, partial(_alternating, name, backward))


def _alternating(name: str, backward: OpKind, problem: Problem) -> Schedule:
    """Return the schedule 1F1B or, if ``backward`` is B, ZB-H1, with one stage per rank."""
    order = []
    for rank in range(problem.ranks):
        stage = problem.placement.owners.index(rank)
        ahead, delay = problem.ranks - stage, stage if backward is OpKind.B else 0
        order.append(
            alternate(stage, problem.microbatches, ahead=ahead, backward=backward, delay=delay)
        )
    return timed(Schedule(problem, tuple(order), report=Report(problem.objective, name)))


def _weights(problem: Problem) -> Iterator[Schedule]:
    """Yield schedules in which weights are sent to each rank when it needs them, or rotate over the
    ranks as in a published family. Microbatches are distributed over ranks."""
    for family in FAMILIES.values():
        if family.name != "fsdp" and family.supports(problem) is None:
            yield _unlimited(family, problem)
    most = -(-problem.microbatches // problem.ranks)
    for rounds, buffers in product({1, most}, {3, problem.stages}):
        order = rows(problem, rounds, deep=1)
        for route in Route:
            choice = WeightPassingParameters(rounds=rounds, buffers=buffers, route=route)
            with suppress(InvalidScheduleError):  # if this route deadlocks
                yield streamed(problem, order, choice)


def _sharded(problem: Problem) -> Iterator[Schedule]:
    """Yield the schedules of FSDP, with and without prefetching of weights."""
    for ahead in PREFETCHES:
        yield _unlimited(FSDP(ahead), problem)


def _unlimited(family: Family, problem: Problem) -> Schedule:
    """Return the family's schedule, which may exceed the memory limit of ``problem``."""
    free = replace(problem, memory_limit=(float("inf"),) * problem.ranks)
    return replace(family.build(free), problem=problem)
