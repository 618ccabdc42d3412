"""A problem with streamed weights, taken apart into pipelines that pass activations.

Microbatches that run on the same ranks are one part: a pipeline of those ranks, to whose ops the
others only lend weights. A part is an instance of activation passing. What holds for every schedule
of a part holds for the whole, as each of its ranks runs the part's ops alone, and weights can only
come later than at once::

    weights-inside:2, P = 4, M = 4         stage 0, 1 | 2, 3         parts
    rank 0, 1   stages 0, 1 of 0, 2 | of 1, 3                        ranks 0, 2: microbatches 0, 2
    rank 2, 3   stages 2, 3 of 0, 2 | of 1, 3                        ranks 1, 3: microbatches 1, 3
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, groupby
from typing import TypeAlias

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.layered_profile import joined
from pipeloom.ir.model.ops import Op, OpKind
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Link, Links, Profile

from .streams import streams_of


@dataclass(frozen=True, slots=True)
class SubPipeline:
    """``problem``: activation passing on the part's own ranks and microbatches, numbered from 0.

    ``ranks``, ``microbatches``: their numbers in the whole; the ranks as the stages come to them.
    """

    ranks: tuple[int, ...]
    microbatches: tuple[int, ...]
    problem: Problem


def parts_of(problem: Problem) -> tuple[SubPipeline, ...]:
    """The parts of ``problem``, by their first microbatch.

    Raises InputError where a rank runs microbatches of two parts: then it has none.
    """
    streams = [(tuple(problem.owner[:, own[0]].tolist()), own) for own in streams_of(problem)]
    taken = [rank for column, _ in streams for rank in set(column)]
    if len(taken) > len(set(taken)):
        raise InputError(
            "placement: a rank shares some microbatches with one rank, some with another"
        )
    return tuple(_part(problem, column, tuple(own)) for column, own in streams)


def different_parts(problem: Problem) -> tuple[Problem, ...]:
    """The problems of the parts, each once; empty where there are no parts."""
    try:
        return tuple(dict.fromkeys(part.problem for part in parts_of(problem)))
    except InputError:
        return ()


def _part(problem: Problem, column: tuple[int, ...], microbatches: tuple[int, ...]) -> SubPipeline:
    ranks = tuple(dict.fromkeys(column))
    limit = tuple(problem.memory_limit[rank] for rank in ranks)
    placement = Placement.of_stages(tuple(map(ranks.index, column)))
    profile = _restricted(problem.profile, ranks, microbatches)
    part = Problem(profile, len(microbatches), placement, limit, problem.objective)
    return SubPipeline(ranks, microbatches, part)


def _restricted(profile: Profile, ranks: tuple[int, ...], microbatches: tuple[int, ...]) -> Profile:
    """The profile of the same stages on ``ranks`` alone, no further apart than they are, and of
    ``microbatches`` alone."""
    t_comm = profile.t_comm
    if isinstance(t_comm, tuple):
        t_comm = tuple(tuple(t_comm[a][b] for b in ranks) for a in ranks)
    return replace(
        profile,
        ranks=len(ranks),
        stages=tuple(stage.of_some(microbatches) for stage in profile.stages),
        t_comm=t_comm,
        links=None if profile.links is None else _links(profile.links, profile.ranks, ranks),
        memory_limit=_at_ranks(profile.memory_limit, ranks),
        device_memory=_at_ranks(profile.device_memory, ranks),
    )


def _links(links: Links, number: int, ranks: tuple[int, ...]) -> Links:
    """Between each two of ``ranks``, among ``number``; what they share with others is left out.

    Opposite ranks of a ring are joined by one way there and by another one back: the better of the
    two counts for both here, so that what bounds the part still bounds the whole.
    """
    latency, rate = links.matrices(number)
    pairs = [
        (i, j, Link(float(min(latency[a, b], latency[b, a])), float(max(rate[a, b], rate[b, a]))))
        for (i, a), (j, b) in combinations(enumerate(ranks), 2)
    ]
    return Links(links.default, tuple(pairs))


def _at_ranks(values: tuple[float, ...] | None, ranks: tuple[int, ...]) -> tuple[float, ...] | None:
    return None if values is None else tuple(values[rank] for rank in ranks)


Groups: TypeAlias = tuple[tuple[int, ...], ...]
"""The stages of each rank, consecutive and ascending."""


def groups(problem: Problem) -> Groups | None:
    """The stages of each rank of a part; None where they are not consecutive."""
    owners = problem.placement.owners
    found = tuple(
        tuple(stages) for _, stages in groupby(range(len(owners)), key=owners.__getitem__)
    )
    return found if len(found) == len(set(owners)) else None


Plan: TypeAlias = Callable[[Problem], Sequence[Iterable[Op]]]
"""An order for each rank of a part with one stage a rank."""


def merged(problem: Problem, of: Groups) -> Problem:
    """The problem with each rank's stages as one; :func:`expanded` leads back to ``problem``."""
    stages = tuple(joined([problem.profile.stages[s] for s in group]) for group in of)
    profile = replace(problem.profile, stages=stages)
    return replace(problem, profile=profile, placement=Placement.linear(problem.ranks))


def expanded(row: Iterable[Op], group: tuple[int, ...]) -> list[Op]:
    """A rank's order of one merged stage as one of its stages: F's down, B's up, then their W's.

    Where no weights are waited for it takes the same times, and it never holds more.
    """
    return [
        Op(op.kind, stage, op.microbatch)
        for op in row
        for stage in (group if op.kind is OpKind.F else reversed(group))
    ]


def planned_by_parts(problem: Problem, plan: Plan) -> list[list[Op]]:
    """The order on all ranks where ``plan`` gives each part's, with each rank's stages as one.

    Parts that are alike are planned once. Raises InputError where a rank's stages of a part are not
    consecutive, or there are no parts.
    """
    rows: list[list[Op]] = [[] for _ in range(problem.ranks)]
    known: dict[Problem, Sequence[Iterable[Op]]] = {}
    for part in parts_of(problem):
        of = groups(part.problem)
        if of is None:
            raise InputError(
                f"placement: {problem.placement.name}: a rank's stages are not consecutive"
            )
        one = merged(part.problem, of)
        order = known[one] if one in known else known.setdefault(one, plan(one))
        for rank, row, group in zip(part.ranks, order, of, strict=True):
            rows[rank] = [
                replace(op, microbatch=part.microbatches[op.microbatch])
                for op in expanded(row, group)
            ]
    return rows
