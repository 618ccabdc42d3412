"""The schemes among which ``optimize --passing auto`` chooses: passing activations, passing
weights, and FSDP. They are compared in :mod:`.passing`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product

from pipeloom.ir.cost.simulator import timed
from pipeloom.ir.errors import InputError, InvalidScheduleError
from pipeloom.ir.model.ops import OpKind
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
    """Return all schemes for a profile with one stage per rank."""
    limit = profile.limit_from(terms.memory_limit)

    def pose(placement: Placement) -> Problem:
        return Problem(profile, terms.microbatches, placement, limit, terms.objective)

    apart = pose(Placement.round_robin(profile.ranks))
    return [
        Scheme("activations", pose(in_a_row(profile)), _activations, 4.0),
        Scheme("weights", apart, _weights, 3.0),
        Scheme("fsdp", apart, _sharded, 0.0),
    ]


def in_a_row(profile: Profile) -> Placement:
    """Return the placement in which the stages follow each other along the ring of ranks.

    No activation crosses the link of the ring with the longest delay: the first stage is on the
    rank behind that link. This is rank 0 if the link between the last rank and rank 0 is among the
    slowest.
    """
    ranks, delays = profile.ranks, profile.delays(profile.stages[0].activation_bytes)
    hops = [max(delays[r - 1, r], delays[r, r - 1]) for r in range(ranks)]
    first = max(range(ranks), key=lambda rank: (hops[rank], -rank))
    owners = tuple((first + stage) % ranks for stage in range(ranks))
    name = "linear" if first == 0 else f"in a row from rank {first}"
    return Placement.of_stages(owners, name, ranks)


def _activations(problem: Problem) -> Iterator[Schedule]:
    """Yield the schedules of families with one stage per rank, 1F1B and ZB-H1 also with the
    problem's placement."""
    for family in synchronous():
        with suppress(InputError):
            posed = family.problem(problem.profile, problem.microbatches, None, problem.objective)
            same = posed.profile.num_stages == problem.stages
            if same and posed.placement.passing is Passing.ACTIVATIONS:
                yield _unlimited(family, replace(posed, memory_limit=problem.memory_limit))
    for name, backward in (("1f1b", OpKind.BW), ("zb-h1", OpKind.B)):
        order = []
        for rank in range(problem.ranks):
            stage = problem.placement.owners.index(rank)
            how = {"ahead": problem.ranks - stage, "delay": stage * (backward is OpKind.B)}
            order.append(alternate(stage, problem.microbatches, backward=backward, **how))
        yield timed(Schedule(problem, tuple(order), report=Report(problem.objective, name)))


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
