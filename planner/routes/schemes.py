"""The schemes among which ``optimize --passing auto`` chooses, with schedules of each.

This module compares nothing: a scheme defines its problems, its constructed schedules, and its
optimized schedules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby, product
from typing import TypeAlias

from pipeloom.ir.cost.simulator import timed
from pipeloom.ir.errors import InputError, InvalidScheduleError
from pipeloom.ir.model.layered_profile import joined
from pipeloom.ir.model.ops import Op, OpKind, pack, unpack
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

Plan: TypeAlias = Callable[[Problem], Sequence[Iterable[Op]]]
"""Returns the order of ops of each stage, for a problem with one stage per rank."""


def planned_as_one(problem: Problem, plan: Plan) -> list[list[Op]]:
    """The order of ops of each rank, if each rank runs consecutive stages.

    Each rank's stages are merged into one stage, for which ``plan`` makes the order. If messages
    take no time, the order has the same makespan as with merged stages, and it never holds more
    memory.
    """
    owners = problem.placement.owners
    groups = [tuple(stages) for _, stages in groupby(range(len(owners)), key=owners.__getitem__)]
    ranks = [owners[group[0]] for group in groups]
    stages = tuple(joined([problem.profile.stages[s] for s in group]) for group in groups)
    merged = replace(
        problem,
        profile=replace(problem.profile, stages=stages),
        placement=Placement.of_stages(ranks, ranks=problem.ranks),
    )
    rows: list[list[Op]] = [[] for _ in range(problem.ranks)]
    for rank, row, group in zip(ranks, plan(merged), groups, strict=True):
        rows[rank] = expanded(row, group)
    return rows


def expanded(row: Iterable[Op], group: tuple[int, ...]) -> list[Op]:
    """The order of a merged stage in terms of its stages: F in ascending order of stages, B and W
    in descending order."""
    return [
        Op(op.kind, stage, op.microbatch)
        for op in row
        for stage in (group if op.kind is OpKind.F else reversed(group))
    ]


Solve: TypeAlias = Callable[[Problem], Schedule]
"""The optimizer with fixed limits. Raises InfeasibleError."""


def schemes(profile: Profile, terms: Terms) -> list[Scheme]:
    """All schemes that apply to the profile."""
    limit = profile.limit_from(terms.memory_limit)

    def pose(placement: Placement) -> Problem:
        return Problem(profile, terms.microbatches, placement, limit, terms.objective)

    apart = pose(Placement.round_robin(profile.ranks))
    found: list[Scheme] = [Weights(apart), Sharded(apart)]
    if profile.num_stages >= profile.ranks:
        found.insert(0, Activations(pose(in_a_row(profile))))
    return found


def in_a_row(profile: Profile) -> Placement:
    """Consecutive stages on each rank, in numbers as equal as possible.

    Ranks follow each other in a ring. The first stage is on rank 0, unless the ring has a longer
    delay elsewhere, which another start avoids.
    """
    ranks, stages = profile.ranks, profile.num_stages
    delays = profile.delays(profile.stages[0].activation_bytes)
    hops = [max(delays[r - 1, r], delays[r, r - 1]) for r in range(ranks)]
    first = max(range(ranks), key=lambda rank: (hops[rank], -rank))
    owners = tuple((first + s * ranks // stages) % ranks for s in range(stages))
    name = "linear" if first == 0 and stages == ranks else f"in a row from rank {first}"
    return Placement.of_stages(owners, name, profile.ranks)


@dataclass(frozen=True, slots=True)
class Activations:
    """A pipeline of activations in which each rank's consecutive stages act as one."""

    problem: Problem
    name: str = "activations"

    def built(self) -> Iterator[Schedule]:
        yield from _families(self.problem)
        for shape, plan in SHAPES.items():
            yield self._planned(self.problem, plan, shape)

    def optimized(self, solve: Solve, limit: tuple[float, ...]) -> Iterator[Schedule]:
        problem = replace(self.problem, memory_limit=limit)
        if problem.stages == problem.ranks:
            yield solve(problem)
            return

        def plan(one: Problem) -> list[list[Op]]:
            schedule = solve(one)
            return [schedule.ops(rank) for rank in one.placement.owners]

        yield self._planned(problem, plan, "optimized")

    def _planned(self, problem: Problem, plan: Plan, shape: str) -> Schedule:
        order = tuple(pack(row) for row in planned_as_one(problem, plan))
        return timed(Schedule(problem, order, report=Report(problem.objective, shape)))


@dataclass(frozen=True, slots=True)
class Weights:
    """Microbatches are distributed over ranks; weights are streamed, or rotated as in a published
    family."""

    problem: Problem
    name: str = "weights"

    def built(self) -> Iterator[Schedule]:
        for family in FAMILIES.values():
            if family.name != "fsdp" and family.supports(self.problem) is None:
                yield _unlimited(family, self.problem)
        most = -(-self.problem.microbatches // self.problem.ranks)
        for rounds, buffers in product({1, most}, {3, self.problem.stages}):
            order = rows(self.problem, rounds, deep=1)
            for route in Route:
                choice = WeightPassingParameters(rounds=rounds, buffers=buffers, route=route)
                with suppress(InvalidScheduleError):  # the route deadlocks
                    yield streamed(self.problem, order, choice)

    def optimized(self, solve: Solve, limit: tuple[float, ...]) -> Iterator[Schedule]:
        """The optimizer's schedule. It trades off weights and activations itself, so that ``limit``
        is not needed."""
        yield solve(self.problem)


@dataclass(frozen=True, slots=True)
class Sharded:
    """``fsdp`` with and without overlap; there is nothing to optimize."""

    problem: Problem
    name: str = "fsdp"

    def built(self) -> Iterator[Schedule]:
        for ahead in PREFETCHES:
            yield _unlimited(FSDP(ahead), self.problem)

    def optimized(self, solve: Solve, limit: tuple[float, ...]) -> Iterator[Schedule]:
        yield from ()


Scheme: TypeAlias = Activations | Weights | Sharded
"""A scheme: its ``name`` in tables, its ``problem``, and two methods that yield schedules.

``built`` yields constructed schedules with their times; they may exceed the memory limit.
``optimized`` yields the optimizer's, with the given limit on each rank's activations; it raises
InfeasibleError if there is none.
"""


def _families(problem: Problem) -> Iterator[Schedule]:
    """Schedules of the families that send activations and do not cut the profile's stages."""
    for family in synchronous():
        with suppress(InputError):
            posed = family.problem(problem.profile, problem.microbatches, None, problem.objective)
            same = posed.profile.num_stages == problem.stages
            if same and posed.placement.passing is Passing.ACTIVATIONS:
                yield _unlimited(family, replace(posed, memory_limit=problem.memory_limit))


def _unlimited(family: Family, problem: Problem) -> Schedule:
    """The family's schedule, which may exceed the memory limit."""
    free = replace(problem, memory_limit=(float("inf"),) * problem.ranks)
    return replace(family.build(free), problem=problem)


def _alternating(problem: Problem, backward: OpKind) -> list[list[Op]]:
    """1F1B, or ZB-H1 if the backward is a B, whose W's are delayed."""
    ranks, count = problem.ranks, problem.microbatches
    found = []
    for i in range(ranks):
        delay = i if backward is OpKind.B else 0
        row = alternate(i, count, ahead=ranks - i, backward=backward, delay=delay)
        found.append(unpack(row))
    return found


SHAPES: dict[str, Plan] = {
    "1f1b": partial(_alternating, backward=OpKind.BW),
    "zb-h1": partial(_alternating, backward=OpKind.B),
}
