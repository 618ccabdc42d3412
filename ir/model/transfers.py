"""Transfers of weights: items and their routes, the owners of stages, sizes and delays.

An item is either a copy of a stage's weights, or a D, an accumulator of the stage's gradient that
is sent from rank to rank. Its transfers, in the order in which the schedule lists them, are its
journey. Copies of the weights start at the stage's owner, which keeps the weights and runs the
optimizer step; every D ends there. The gradients that a rank computes for a stage are added to the
next D of the stage that the rank sends. A stage with transfers is called streamed.
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
    """For each item, the indices of its transfers in ``transfers``, in order."""
    result: defaultdict[Item, list[int]] = defaultdict(list)
    for i, transfer in enumerate(transfers):
        result[transfer.item].append(i)
    return dict(result)


def previous(transfers: Sequence[Transfer]) -> list[int | None]:
    """For each transfer, the index of the previous transfer of its item; None for the first."""
    last: dict[Item, int] = {}
    result = []
    for i, transfer in enumerate(transfers):
        result.append(last.get(transfer.item))
        last[transfer.item] = i
    return result


def earlier_ones(transfers: Sequence[Transfer]) -> IntArray:
    """:func:`previous` as an array, (T,), with -1 for None."""
    return np.array([-1 if e is None else e for e in previous(transfers)], dtype=np.int64)


def owners(schedule: Schedule) -> tuple[int, ...]:
    """The owner of each stage, the rank that keeps its weights and optimizer state, (S,).

    For a streamed stage, it is the rank where the copies of the weights start and every D ends. A
    stage that is not streamed is owned by the rank that runs it; if several ranks run it
    (:func:`holders`), by the rank of microbatch 0.
    """
    problem = schedule.problem
    result = problem.owner[:, 0].tolist()
    for stage, home in once(schedule.transfers, _homes).items():
        result[stage] = home
    return tuple(result)


def _homes(transfers: Sequence[Transfer]) -> dict[int, int]:
    """The owner of each streamed stage, as a dictionary from stage to rank."""
    found = {}
    for (kind, stage, _), journey in journeys(transfers).items():
        first, last = transfers[journey[0]], transfers[journey[-1]]
        found[stage] = first.source if kind is TransferKind.WEIGHT else last.target
    return found


def holders(schedule: Schedule) -> tuple[tuple[int, ...], ...]:
    """The ranks that permanently hold each stage's weights and run its optimizer step, (S,).

    For a streamed stage, this is only the owner; otherwise, all ranks that run the stage,
    ascending. If there are several, the stage is *replicated*: its gradients are summed over these
    ranks, and all of them run the same optimizer step.
    """
    users, streamed = schedule.problem.owner, schedule.streamed
    return tuple(
        (owner,) if stage in streamed else tuple(np.unique(users[stage]).tolist())
        for stage, owner in enumerate(owners(schedule))
    )


def owned(schedule: Schedule) -> tuple[tuple[int, ...], ...]:
    """For each rank, the stages that it owns or of which it has a replica, ascending, (P,)."""
    homes = holders(schedule)
    return tuple(
        tuple(stage for stage, ranks in enumerate(homes) if rank in ranks)
        for rank in range(schedule.problem.ranks)
    )


def size(profile: Profile, kind: TransferKind, stage: int) -> float:
    """Bytes of one transfer of the stage's weights or gradient, depending on ``kind``.

    An unknown size of a gradient counts as that of the weights, an unknown size of weights as 0.
    """
    sizes = profile.stages[stage]
    if kind is TransferKind.GRADIENT and sizes.grad_bytes is not None:
        return sizes.grad_bytes
    return sizes.weight_bytes or 0.0


def transfer_delays(problem: Problem, transfers: Sequence[Transfer]) -> FloatArray:
    """The duration of each of the T transfers in ms, (T,).

    It follows from ``links`` and :func:`size` if the profile has links. Otherwise it is the
    profile's ``t_comm``, or 0 without one.
    """
    delays = np.zeros(len(transfers))
    for (kind, stage), (places, source, target) in once(transfers, _by_tensor).items():
        delays[places] = delay_matrix(problem.profile, kind, stage)[source, target]
    return delays


def _by_tensor(transfers: Sequence[Transfer]) -> dict[tuple[TransferKind, int], list[list[int]]]:
    """For each (kind, stage), three lists: the indices, sources and targets of its transfers."""
    found: dict[tuple[TransferKind, int], list[list[int]]] = defaultdict(lambda: [[], [], []])
    for x, t in enumerate(transfers):
        for column, value in zip(found[t.kind, t.stage], (x, t.source, t.target), strict=True):
            column.append(value)
    return found


def delay_matrix(profile: Profile, kind: TransferKind, stage: int) -> FloatArray:
    """Delays in ms of the stage's weights or gradient between ranks, (P, P), row: sender."""
    if profile.links is None:
        return profile.delays(None)
    return profile.link_delays(size(profile, kind, stage))


def stepping(homes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The ranks that run optimizer steps, in the order in which they sum the gradient norm.

    They are sorted by the lowest stage that each of them steps, as the ranks of the first stages
    begin the next iteration first. ``homes``: the ranks that step each stage (:func:`holders`).
    """
    first: dict[int, int] = {}
    for stage, ranks in enumerate(homes):
        for rank in ranks:
            first.setdefault(rank, stage)
    return tuple(sorted(first, key=lambda rank: (first[rank], rank)))
