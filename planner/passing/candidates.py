"""The schemes among which ``optimize --passing auto`` chooses, and schedules of each.

Nothing is judged here: a scheme only knows which instances it poses, which schedules of them are
there at once, and which an optimizer makes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product
from typing import Protocol, TypeAlias

from pipeloom.ir.cost.simulator import timed
from pipeloom.ir.errors import InputError, InvalidScheduleError
from pipeloom.ir.model.ops import Op, OpKind, pack, unpack
from pipeloom.ir.model.placement import Passing, Placement
from pipeloom.ir.model.problem import Objective, Problem
from pipeloom.ir.model.profile import Profile
from pipeloom.ir.model.schedule import Report, Schedule
from pipeloom.solver.core.decomposition import Plan, planned_by_parts
from pipeloom.solver.families import FAMILIES, Family, synchronous
from pipeloom.solver.families.base import alternate
from pipeloom.solver.families.weights.fsdp import FSDP, PREFETCHES
from pipeloom.solver.weight_passing.parameters import WeightPassingParameters
from pipeloom.solver.weight_passing.round_orders import rows
from pipeloom.solver.weight_passing.streaming import (
    Route,
    Streaming,
    default_owners,
    streamed,
    users,
)

Solve: TypeAlias = Callable[[Problem], Schedule]
"""The optimizer, its limits decided. Raises InfeasibleError."""


class Scheme(Protocol):
    """One way to place ops; ``name`` is how a table calls it."""

    @property
    def name(self) -> str: ...

    @property
    def problem(self) -> Problem: ...

    def built(self) -> Iterator[Schedule]:
        """Schedules of fixed shapes, timed; whether they keep the memory limit is left open."""
        ...

    def optimized(self, solve: Solve, limit: tuple[float, ...]) -> Iterator[Schedule]:
        """Schedules from the optimizer, within ``limit`` of activations, one number a rank.

        Raises InfeasibleError where there is none.
        """
        ...


def schemes(
    profile: Profile, microbatches: int, memory_limit: float | None, objective: Objective
) -> list[Scheme]:
    """All that fit the profile: pure ones first, then islands of every size."""
    limit = profile.limit_from(memory_limit)

    def pose(placement: Placement) -> Problem:
        return Problem(profile, microbatches, placement, limit, objective)

    ranks, stages = profile.ranks, profile.num_stages
    apart = pose(Placement.round_robin(ranks))
    found: list[Scheme] = [Weights(apart), Sharded(apart)]
    if stages >= ranks:
        found.insert(0, Pipelines("activations", pose(in_a_row(profile))))
    for size in range(2, ranks):
        for placed in (Placement.weights_inside, Placement.activations_inside):
            with suppress(ValueError):  # no islands of that size, or too few stages
                placement = placed(ranks, size, stages)
                found.append(Pipelines(placement.name, pose(placement)))
    return found


def in_a_row(profile: Profile) -> Placement:
    """Consecutive stages on each rank, as many as can be equal; they begin where a ring is cut
    best.

    Ranks follow each other by number, the first after the last. They begin with rank 0, unless
    another start leaves out a longer delay.
    """
    ranks, stages = profile.ranks, profile.num_stages
    delays = profile.delays(profile.stages[0].activation_bytes)
    hops = [max(delays[r - 1, r], delays[r, r - 1]) for r in range(ranks)]
    first = max(range(ranks), key=lambda rank: (hops[rank], -rank))
    owners = tuple((first + s * ranks // stages) % ranks for s in range(stages))
    name = "linear" if first == 0 and stages == ranks else f"in a row from rank {first}"
    return Placement.of_stages(owners, name, profile.ranks)


@dataclass(frozen=True, slots=True)
class Pipelines:
    """Pipelines of one stage a rank once each rank's are merged; weights stream where they must."""

    name: str
    problem: Problem

    def built(self) -> Iterator[Schedule]:
        if self.problem.placement.passing is Passing.ACTIVATIONS:
            yield from _families(self.problem)
        for shape, plan in SHAPES.items():
            yield from self._streams(self.problem, plan, shape)

    def optimized(self, solve: Solve, limit: tuple[float, ...]) -> Iterator[Schedule]:
        problem = replace(self.problem, memory_limit=limit)
        if problem.placement.passing is Passing.ACTIVATIONS and problem.stages == problem.ranks:
            yield solve(problem)
            return

        def plan(one: Problem) -> list[list[Op]]:
            schedule = solve(one)
            return [schedule.ops(rank) for rank in range(one.ranks)]

        yield from self._streams(problem, plan, "optimized")

    def _streams(self, problem: Problem, plan: Plan, shape: str) -> Iterator[Schedule]:
        order = tuple(pack(row) for row in planned_by_parts(problem, plan))
        if problem.placement.passing is Passing.ACTIVATIONS:
            yield timed(Schedule(problem, order, report=Report(problem.objective, shape)))
            return
        for streaming in _streamings(problem):
            with suppress(InvalidScheduleError):  # a path that would wait for itself
                yield streamed(
                    problem, order, f"{self.name}, {shape}, {_words(streaming)}", streaming
                )


def _words(streaming: Streaming) -> str:
    number = streaming.buffers
    buffers = f"{number} buffer" + ("s" if number > 1 else "")
    return buffers if streaming.route is Route.DIRECT else f"{buffers}, {streaming.route.value}"


def _streamings(problem: Problem) -> Iterator[Streaming]:
    """Few buffers and enough for all, straight from the owner or, to more than one, by paths."""
    home, using = default_owners(problem), users(problem)
    foreign = [
        sum(rank in ranks and home[s] != rank for s, ranks in enumerate(using))
        for rank in range(problem.ranks)
    ]
    most = max(*foreign, 1)
    for buffers in sorted({min(2, most), min(4, most), most}):
        yield Streaming(buffers)
        if max(map(len, using)) > 2:
            yield Streaming(buffers, Route.BOTH_WAYS)


@dataclass(frozen=True, slots=True)
class Weights:
    """Microbatches dealt out to ranks; weights stream, or go round as in a published family."""

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
                with suppress(InvalidScheduleError):  # a path that would wait for itself
                    yield streamed(self.problem, order, str(choice), choice)

    def optimized(self, solve: Solve, limit: tuple[float, ...]) -> Iterator[Schedule]:
        """Weights and activations share the devices here: the optimizer weighs them by itself."""
        yield solve(self.problem)


@dataclass(frozen=True, slots=True)
class Sharded:
    """``fsdp`` at several depths: nothing to optimize."""

    problem: Problem
    name: str = "fsdp"

    def built(self) -> Iterator[Schedule]:
        for ahead in PREFETCHES:
            yield _unlimited(FSDP(ahead), self.problem)

    def optimized(self, solve: Solve, limit: tuple[float, ...]) -> Iterator[Schedule]:
        yield from ()


def _families(problem: Problem) -> Iterator[Schedule]:
    """Schedules of families that send activations and take the profile's stages as they are."""
    for family in synchronous():
        with suppress(InputError):
            posed = family.problem(problem.profile, problem.microbatches, None, problem.objective)
            same = posed.profile.num_stages == problem.stages
            if same and posed.placement.passing is Passing.ACTIVATIONS:
                yield _unlimited(family, replace(posed, memory_limit=problem.memory_limit))


def _unlimited(family: Family, problem: Problem) -> Schedule:
    """The family's schedule, whether it keeps the memory limit or not."""
    free = replace(problem, memory_limit=(float("inf"),) * problem.ranks)
    return replace(family.build(free), problem=problem)


def _one_f_one_b(part: Problem) -> list[list[Op]]:
    ranks, count = part.ranks, part.microbatches
    rows = (alternate(i, count, ahead=ranks - i, backward=OpKind.BW) for i in range(ranks))
    return [*map(unpack, rows)]


def _zb_h1(part: Problem) -> list[list[Op]]:
    ranks, count = part.ranks, part.microbatches
    rows = (alternate(i, count, ahead=ranks - i, backward=OpKind.B, delay=i) for i in range(ranks))
    return [*map(unpack, rows)]


SHAPES: dict[str, Plan] = {"1f1b": _one_f_one_b, "zb-h1": _zb_h1}
