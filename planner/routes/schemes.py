"""The schemes among which ``optimize --passing auto`` chooses: passing activations, passing
weights, and FSDP.

A scheme defines its problem, its constructed schedules and its optimized schedules. They are
compared in :mod:`.passing`.
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
"""A function that returns the order of ops of each stage, for a problem with one stage per rank."""


def planned_as_one(problem: Problem, plan: Plan) -> list[list[Op]]:
    """Return the order of ops of each rank, for a problem in which each rank runs consecutive
    stages.

    The stages of each rank are merged into one stage, and ``plan`` orders the ops of the merged
    stages. Then each of these ops is replaced by the ops of its parts. If messages take no time,
    the result has the same makespan as the merged stages, and never holds more memory.
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
    """Return the ops of a merged stage, in order, each replaced by the ops of its parts.

    ``row``: the ops of the merged stage. ``group``: the stages that are its parts. An F becomes the
    F's of these stages in ascending order, a backward becomes theirs in descending order.
    """
    return [
        Op(op.kind, stage, op.microbatch)
        for op in row
        for stage in (group if op.kind is OpKind.F else reversed(group))
    ]


Solve: TypeAlias = Callable[[Problem], Schedule]
"""The optimizer with fixed limits: a function that returns the best schedule. Raises
InfeasibleError."""


def schemes(profile: Profile, terms: Terms) -> list[Scheme]:
    """Return all schemes that apply to the profile. Passing activations applies only if there are
    at least as many stages as ranks."""
    limit = profile.limit_from(terms.memory_limit)

    def pose(placement: Placement) -> Problem:
        return Problem(profile, terms.microbatches, placement, limit, terms.objective)

    apart = pose(Placement.round_robin(profile.ranks))
    found: list[Scheme] = [Weights(apart), Sharded(apart)]
    if profile.num_stages >= profile.ranks:
        found.insert(0, Activations(pose(in_a_row(profile))))
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
    return Placement.of_stages(owners, name, profile.ranks)


@dataclass(frozen=True, slots=True)
class Activations:
    """The scheme that passes activations. Each rank runs consecutive stages as if they were one."""

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
    """The scheme that passes weights, with microbatches distributed over ranks.

    Weights are either sent to each rank when it needs them, or rotate over the ranks as in a
    published family.
    """

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
                with suppress(InvalidScheduleError):  # if this route deadlocks
                    yield streamed(self.problem, order, choice)

    def optimized(self, solve: Solve, limit: tuple[float, ...]) -> Iterator[Schedule]:
        """Yield the optimizer's schedule. ``limit`` is ignored, because the optimizer divides
        device memory between weights and activations itself."""
        yield solve(self.problem)


@dataclass(frozen=True, slots=True)
class Sharded:
    """The scheme ``fsdp``: fully sharded data parallelism, with and without prefetching of weights.

    There is nothing to optimize.
    """

    problem: Problem
    name: str = "fsdp"

    def built(self) -> Iterator[Schedule]:
        for ahead in PREFETCHES:
            yield _unlimited(FSDP(ahead), self.problem)

    def optimized(self, solve: Solve, limit: tuple[float, ...]) -> Iterator[Schedule]:
        yield from ()


Scheme: TypeAlias = Activations | Weights | Sharded
"""A scheme: its ``name`` in tables, its ``problem``, and two methods that yield schedules.

``built`` yields constructed schedules with their times, which may exceed the memory limit.
``optimized`` yields those that the optimizer finds, with ``limit`` as the memory limit of each
rank's activations; it raises InfeasibleError if there is none.
"""


def _families(problem: Problem) -> Iterator[Schedule]:
    """Yield the schedule of each family that passes activations and does not cut the profile's
    stages.

    The schedules may exceed the memory limit.
    """
    for family in synchronous():
        with suppress(InputError):
            posed = family.problem(problem.profile, problem.microbatches, None, problem.objective)
            same = posed.profile.num_stages == problem.stages
            if same and posed.placement.passing is Passing.ACTIVATIONS:
                yield _unlimited(family, replace(posed, memory_limit=problem.memory_limit))


def _unlimited(family: Family, problem: Problem) -> Schedule:
    """Return the family's schedule, which may exceed the memory limit of ``problem``."""
    free = replace(problem, memory_limit=(float("inf"),) * problem.ranks)
    return replace(family.build(free), problem=problem)


def _alternating(problem: Problem, backward: OpKind) -> list[list[Op]]:
    """Return the order of ops of each rank for 1F1B or, if ``backward`` is B, for ZB-H1.

    ``backward``: BW or B. With B, the W's run later than their B's.
    """
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
