"""Gradients averaged over replicas of the whole pipeline, beside its ops: data parallelism's cost.

A rank averages each stage that it has for good (:func:`..model.transfers.holders`) as soon as it
has all of its gradient: at the end of the stage's last W or BW there; at the end of its last op,
and of the last gradient that comes home, where gradients are sent; at the end of the last op of all
its ranks where the stage is replicated within the pipeline. It does so one after the other, as they
become ready (of two at one time the lower stage first), over a link that carries nothing else. Ops
do not wait for it, the optimizer's step does.

With D replicas a stage takes a ring all-reduce
(:func:`.steady_state.iteration_graph.all_reduces`): 2 (D - 1) times a part of 1 / D of its
gradient. For stages wrapped in ``fully_shard`` the second half of that is the gathering before the
next step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..model.ops import OpKind, fields_of
from ..model.schedule import Averaged, Schedule, Timing, TransferKind
from ..model.transfers import holders, size


class Due(NamedTuple):
    """A stage that a rank averages, for ``duration`` ms. ``last``: the position in the rank's order
    of the last op that adds to its gradient; None where more than that op must be over.
    """

    rank: int
    stage: int
    duration: float
    last: int | None


def due(schedule: Schedule) -> list[Due]:
    """All of them, by rank and stage; none where the profile has no replicas."""
    profile = schedule.problem.profile
    over = profile.data_parallel
    if over is None:
        return []
    streamed = schedule.streamed
    return [
        Due(
            rank,
            stage,
            over.time(size(profile, TransferKind.GRADIENT, stage)),
            None if stage in streamed or len(ranks) > 1 else _last(schedule, rank, stage),
        )
        for stage, ranks in enumerate(holders(schedule))
        for rank in ranks
    ]


def averages(schedule: Schedule, timing: Timing) -> tuple[tuple[Averaged, ...], ...]:
    """When each rank averages which stage, one tuple a rank; ``timing`` is that of the ops."""
    found: list[list[Averaged]] = [[] for _ in timing.start]
    ready = [(_ready(schedule, timing, one), one) for one in due(schedule)]
    for at, one in sorted(ready, key=lambda pair: (pair[0], pair[1].stage)):
        row = found[one.rank]
        start = max(at, row[-1].end) if row else at
        row.append(Averaged(one.stage, start, start + one.duration))
    return tuple(map(tuple, found))


def share_until(schedule: Schedule, timing: Timing, until: float) -> float:
    """The share of the averages' durations with which the last of them ends at ``until``, no
    earlier than all ops.

    A rank's averages, one after the other, end at the latest of: when one of them is ready, and the
    durations from that one on. So the share is the least that one of these leaves.
    """
    ready = sorted((_ready(schedule, timing, one), one.stage, one) for one in due(schedule))
    later = dict.fromkeys(range(len(timing.start)), 0.0)
    shares = []
    for at, _, one in reversed(ready):
        later[one.rank] += one.duration
        if later[one.rank] > 0:
            shares.append((until - at) / later[one.rank])
    return max(0.0, min(shares, default=1.0))


def _last(schedule: Schedule, rank: int, stage: int) -> int | None:
    order = schedule.order[rank]
    kinds, stages, _ = fields_of(order)
    adds = (kinds == OpKind.W) | (kinds == OpKind.BW)
    places = np.flatnonzero(adds & (stages == stage))
    return int(places[-1]) if len(places) else None


def _ready(schedule: Schedule, timing: Timing, one: Due) -> float:
    if one.last is not None:
        return float(timing.end[one.rank][one.last])
    ranks = holders(schedule)[one.stage]
    ends = [float(timing.end[rank][-1]) for rank in ranks if len(timing.end[rank])]
    ends += [
        float(timing.transfers[i, 1])
        for i, transfer in enumerate(schedule.transfers)
        if transfer.kind is TransferKind.GRADIENT
        and (transfer.stage, transfer.target) == (one.stage, one.rank)
    ]
    return max(ends, default=0.0)
