"""Bytes sent over each link in an iteration."""

from __future__ import annotations

import numpy as np

from ..model.ops import FloatArray
from ..model.problem import Problem
from ..model.profile import Profile
from ..model.schedule import Schedule, TransferKind
from ..model.transfers import holders, size


def traffic(schedule: Schedule) -> FloatArray:
    """Bytes that each rank sends to each other rank in an iteration, (P, P), row: sender.

    This includes activations and their gradients between stages on different ranks, which have
    ``activation_bytes`` each, and the schedule's transfers of weights and gradients. Unknown sizes
    count as 0, but unknown sizes of gradients as those of the weights. The gradients of a
    replicated stage are summed by a ring all-reduce over its n ranks: each rank sends 2 (n - 1) / n
    times their size to the next rank.
    """
    problem = schedule.problem
    sent = activation_traffic(problem) + _reductions(schedule)
    for t in schedule.transfers:
        sent[t.source, t.target] += size(problem.profile, t.kind, t.stage)
    return sent


def over_wires(profile: Profile, amounts: FloatArray) -> dict[str, float]:
    """The bytes that each wire carries, as a dictionary from the wire's name.

    ``amounts``: the bytes that ranks send to each other, (P, P), row: sender (:func:`traffic`).
    Wires that carry nothing are left out. The dictionary is empty if the profile has no links.
    """
    pairs: list[tuple[int, int]] = [(int(a), int(b)) for a, b in np.argwhere(amounts)]
    result: dict[str, float] = {}
    for pair, wires in zip(pairs, profile.wires(pairs), strict=True):
        for wire in wires:
            result[wire] = result.get(wire, 0.0) + float(amounts[pair])
    return result


def _reductions(schedule: Schedule) -> FloatArray:
    profile = schedule.problem.profile
    sent = np.zeros((profile.ranks, profile.ranks))
    for stage, ranks in enumerate(holders(schedule)):
        share = 2 * (len(ranks) - 1) / len(ranks) * size(profile, TransferKind.GRADIENT, stage)
        for rank, following in zip(ranks, (*ranks[1:], ranks[0]), strict=True):
            sent[rank, following] += share  # 0 for a single rank
    return sent


def activation_traffic(problem: Problem) -> FloatArray:
    """Bytes of activations and their gradients in :func:`traffic`, (P, P), row: sender."""
    sent = np.zeros((problem.ranks, problem.ranks))
    owner = problem.owner
    for s, stage in enumerate(problem.profile.stages[:-1]):
        here, there = owner[s], owner[s + 1]
        apart = here != there
        each = range(problem.microbatches)
        numbers = np.array([stage.at(j).activation_bytes or 0.0 for j in each])[apart]
        np.add.at(sent, (here[apart], there[apart]), numbers)
        np.add.at(sent, (there[apart], here[apart]), numbers)
    return sent
