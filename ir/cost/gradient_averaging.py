"""Data parallelism: the averaging of gradients over replicas of the pipeline, beside the ops.

A rank averages each stage that it permanently holds (:func:`..model.transfers.holders`) as soon as
its gradient is complete:

- normally at the end of the stage's last W or BW on the rank;
- if the stage's gradients are sent, at the end of the rank's last op and of the last gradient that
  arrives;
- if the stage is replicated within the pipeline, at the end of the last op of all its ranks.

The rank averages one stage at a time, in the order in which they become ready (at the same time,
the lower stage first), over a link that carries nothing else. Ops do not wait for it; the optimizer
step does.

With D replicas, a stage takes a ring all-reduce
(:func:`.steady_state.iteration_graph.all_reduces`): 2 (D - 1) messages of 1 / D of its gradient.
For stages wrapped in ``fully_shard``, the second half of it is the all-gather before the next step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..model.ops import OpKind, fields_of
from ..model.schedule import Averaged, Schedule, Timing, TransferKind
from ..model.transfers import holders, size


class Due(NamedTuple):
    """A stage that a rank averages, in ``duration`` ms.

    ``last``: the position in the rank's order of the last op that adds to the gradient; None if the
    average also waits for transfers or for other ranks. ``ranks``: all that hold the stage.
    """

    rank: int
    stage: int
    duration: float
    last: int | None
    ranks: tuple[int, ...]


def due(schedule: Schedule) -> list[Due]:
    """All averages, by stage and rank; empty if the profile has no replicas."""
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
            ranks,
        )
        for stage, ranks in enumerate(holders(schedule))
        for rank in ranks
    ]


def averages(schedule: Schedule, timing: Timing) -> tuple[tuple[Averaged, ...], ...]:
    """The intervals in which each rank averages its stages; ``timing`` is the timing of the ops."""
    found: list[list[Averaged]] = [[] for _ in timing.start]
    ready = [(_ready(schedule, timing, one), one) for one in due(schedule)]
    for at, one in sorted(ready, key=lambda pair: (pair[0], pair[1].stage)):
        row = found[one.rank]
        start = max(at, row[-1].end) if row else at
        row.append(Averaged(one.stage, start, start + one.duration))
    return tuple(map(tuple, found))


def share_until(schedule: Schedule, timing: Timing, until: float) -> float:
    """The factor by which averages must be scaled so that the last one ends at ``until``; at least
    0.

    ``until`` is not before the end of the last op. A rank's averages run one after the other, so
    the last one ends at the maximum of: the time when one of them is ready, plus the durations from
    that one on. The factor is the minimum that these terms allow (1 if there are no averages).
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
    ends = [float(timing.end[rank][-1]) for rank in one.ranks if len(timing.end[rank])]
    ends += [
        float(timing.transfers[i, 1])
        for i, transfer in enumerate(schedule.transfers)
        if transfer.kind is TransferKind.GRADIENT
        and (transfer.stage, transfer.target) == (one.stage, one.rank)
    ]
    return max(ends, default=0.0)
