"""Random valid schedules in which activations, weights and gradients travel at once."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from pipeloom.ir import (
    InvalidScheduleError,
    Link,
    Links,
    OpKind,
    Passing,
    Placement,
    Problem,
    Profile,
    Schedule,
    StageProfile,
    Transfer,
    TransferKind,
    timed,
)
from tests.support.random_schedules import random_order

_TIMES = st.sampled_from([0.0, 0.1, 1.0, 1.7, 3.0])


@st.composite
def mixed_schedules(draw: st.DrawFn) -> Schedule:
    """Up to 4 ranks, 5 stages and 5 microbatches, each pair on any rank; some stages replicated."""
    ranks, microbatches = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    stages = tuple(
        StageProfile(
            *draw(st.tuples(_TIMES, _TIMES, _TIMES)),
            activation_bytes=1e6,
            weight_bytes=draw(_TIMES) * 1e6,
        )
        for _ in range(draw(st.integers(1, 5)))
    )
    links = draw(st.none() | st.builds(lambda latency: Links(Link(latency, 1.0)), _TIMES))
    t_comm = draw(_TIMES) if links is None else None
    profile = Profile(stages, ranks, t_comm, links, shared_by=1)
    count = len(stages) * microbatches
    owners = draw(st.lists(st.integers(0, ranks - 1), min_size=count, max_size=count))
    placement = Placement.of_ops(
        Passing.MIXED, ranks, np.reshape(owners, (len(stages), microbatches))
    )
    problem = Problem(profile, microbatches, placement, profile.limit_from(None))
    random = Random(draw(st.integers(0, 2**32)))
    fused = draw(st.sampled_from([0.0, 0.5, 1.0]))
    schedule = Schedule.of(problem, random_order(problem, fused, random), "random")
    transfers = [t for s in range(len(stages)) for t in _journeys(schedule, s, random)]
    try:
        return timed(replace(schedule, transfers=tuple(transfers)))
    except InvalidScheduleError:  # copies that go from rank to rank may wait for each other
        assume(False)
        raise


def _journeys(schedule: Schedule, stage: int, random: Random) -> list[Transfer]:
    """One stage's: straight from and to the owner, or round all its users; none: replicated."""
    visits = _visits(schedule, stage)
    owner = random.choice([*visits, random.randrange(schedule.problem.ranks)])
    users = [rank for rank in visits if rank != owner]
    random.shuffle(users)
    style = random.choice(["direct", "direct", "round", "replicated"])
    if style == "replicated":
        return []
    if style == "round":
        return _round(schedule, stage, owner, users, random)
    return [
        t for i, rank in enumerate(users) for t in _direct(schedule, stage, owner, rank, i, random)
    ]


def _visits(schedule: Schedule, stage: int) -> dict[int, tuple[int, int, int]]:
    """By rank: positions of the first and of the last use of the weights, and of the last dW."""
    found = {}
    for rank in range(schedule.problem.ranks):
        ops = [(i, op) for i, op in enumerate(schedule.ops(rank)) if op.stage == stage]
        if ops:
            reads = [i for i, op in ops if op.kind is not OpKind.W]
            adds = [i for i, op in ops if op.kind in (OpKind.W, OpKind.BW)]
            found[rank] = reads[0], reads[-1], adds[-1]
    return found


def _direct(
    schedule: Schedule, stage: int, owner: int, rank: int, index: int, random: Random
) -> list[Transfer]:
    first, last, added = _visits(schedule, stage)[rank]
    home = len(schedule.order[owner])
    found = [
        Transfer(TransferKind.WEIGHT, stage, 2 * index, owner, rank, 0, first, random.randint(0, first)),  # noqa: E501
        Transfer(TransferKind.GRADIENT, stage, index, rank, owner, added + 1, home),
    ]  # fmt: skip
    if random.random() < 0.5:  # a second copy, for the later uses
        again = random.randint(first, last)
        room = random.randint(first, again)
        found.append(
            Transfer(TransferKind.WEIGHT, stage, 2 * index + 1, owner, rank, 0, again, room)
        )
    if random.random() < 0.5:  # a D for what was added so far
        early = random.randint(first, added)
        found.insert(
            1, Transfer(TransferKind.GRADIENT, stage, 100 + index, rank, owner, early, home)
        )
    return found


def _round(
    schedule: Schedule, stage: int, owner: int, users: list[int], random: Random
) -> list[Transfer]:
    """One copy from user to user, and one D that collects what they have added."""
    visits = _visits(schedule, stage)
    found, here = [], owner
    for rank in users:
        first = visits[rank][0]
        room = random.randint(0, first)
        found.append(Transfer(TransferKind.WEIGHT, stage, 0, here, rank, 0, first, room))
        here = rank
    for rank, to in pairwise((*users, owner)):
        after, before = visits[rank][2] + 1, len(schedule.order[to])
        found.append(Transfer(TransferKind.GRADIENT, stage, 0, rank, to, after, before))
    return found
