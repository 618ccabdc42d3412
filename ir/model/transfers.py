"""Weight transfers: items and their journeys, the owners of weights, and delays.

An item is one copy of a stage's weights or one accumulator D of its gradient. Its transfers, in
the order in which the schedule lists them, are its journey. The weights' copies set out from the
stage's owner, which keeps the true weights and steps the optimizer; every D ends there. What a
rank adds to a stage's gradient leaves with the next D of that stage that leaves it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from .ops import FloatArray, IntArray
from .problem import Problem
from .profile import Profile
from .schedule import Schedule, Transfer, TransferKind, once

Item: TypeAlias = tuple[TransferKind, int, int]  # kind, stage, copy


def journeys(transfers: Sequence[Transfer]) -> dict[Item, list[int]]:
    """Each item's transfers, as indices, in the order in which they happen."""
    result: defaultdict[Item, list[int]] = defaultdict(list)
    for i, transfer in enumerate(transfers):
        result[transfer.item].append(i)
    return dict(result)


def previous(transfers: Sequence[Transfer]) -> list[int | None]:
    """For each transfer, the one before it on its item's journey; None for the first."""
    last: dict[Item, int] = {}
    result = []
    for i, transfer in enumerate(transfers):
        result.append(last.get(transfer.item))
        last[transfer.item] = i
    return result


def earlier_ones(transfers: Sequence[Transfer]) -> IntArray:
    """:func:`previous` as an array, -1 for the first."""
    return np.array([-1 if e is None else e for e in previous(transfers)], dtype=np.int64)


def owners(schedule: Schedule) -> tuple[int, ...]:
    """The rank of each stage's true weights and optimizer state, shape (S,).

    It is where the weights set out and D ends; a stage that is not streamed is owned by the
    rank that runs it (where several do, see :func:`holders`, by that of microbatch 0).
    """
    problem = schedule.problem
    result = problem.owner[:, 0].tolist()
    for stage, home in once(schedule.transfers, _homes).items():
        result[stage] = home
    return tuple(result)


def _homes(transfers: Sequence[Transfer]) -> dict[int, int]:
    """The owner of each streamed stage."""
    found = {}
    for (kind, stage, _), journey in journeys(transfers).items():
        first, last = transfers[journey[0]], transfers[journey[-1]]
        found[stage] = first.source if kind is TransferKind.WEIGHT else last.target
    return found


def holders(schedule: Schedule) -> tuple[tuple[int, ...], ...]:
    """The ranks that have each stage's weights for good, and step them: (S,), each ascending.

    The owner alone; or, of a stage that is not streamed, all ranks that run it. Where they are
    several the stage is *replicated*: they sum its gradients and all step alike.
    """
    users, streamed = schedule.problem.owner, schedule.streamed
    return tuple(
        (owner,) if stage in streamed else tuple(np.unique(users[stage]).tolist())
        for stage, owner in enumerate(owners(schedule))
    )


def owned(schedule: Schedule) -> tuple[tuple[int, ...], ...]:
    """The stages that each rank owns or has a replica of, ascending, one tuple a rank."""
    homes = holders(schedule)
    return tuple(
        tuple(stage for stage, ranks in enumerate(homes) if rank in ranks)
        for rank in range(schedule.problem.ranks)
    )


def size(profile: Profile, kind: TransferKind, stage: int) -> float:
    """Bytes of one transfer of the stage's weights or gradient.

    Unknown gradient bytes count as the weights', unknown weight bytes as 0.
    """
    sizes = profile.stages[stage]
    if kind is TransferKind.GRADIENT and sizes.grad_bytes is not None:
        return sizes.grad_bytes
    return sizes.weight_bytes or 0.0


def transfer_delays(problem: Problem, transfers: Sequence[Transfer]) -> FloatArray:
    """How long each transfer takes, shape (number of transfers,).

    ``links`` with the transfer's :func:`size` where the profile has links, else ``t_comm``, else 0.
    """
    delays = np.zeros(len(transfers))
    for (kind, stage), (places, source, target) in once(transfers, _by_tensor).items():
        delays[places] = delay_matrix(problem.profile, kind, stage)[source, target]
    return delays


def _by_tensor(transfers: Sequence[Transfer]) -> dict[tuple[TransferKind, int], list[list[int]]]:
    """The transfers of each tensor, their sources and their targets."""
    found: dict[tuple[TransferKind, int], list[list[int]]] = defaultdict(lambda: [[], [], []])
    for x, t in enumerate(transfers):
        for column, value in zip(found[t.kind, t.stage], (x, t.source, t.target), strict=True):
            column.append(value)
    return found


def delay_matrix(profile: Profile, kind: TransferKind, stage: int) -> FloatArray:
    """Delay of the stage's weights or gradient from rank (row) to rank, shape (P, P)."""
    if profile.links is None:
        return profile.delays(None)
    return profile.link_delays(size(profile, kind, stage))


def stepping(homes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The ranks that step a stage, in the order in which their parts of a norm are added up.

    By the first stage that they step (``homes`` are :func:`holders`), which also begins first.
    """
    first: dict[int, int] = {}
    for stage, ranks in enumerate(homes):
        for rank in ranks:
            first.setdefault(rank, stage)
    return tuple(sorted(first, key=lambda rank: (first[rank], rank)))
