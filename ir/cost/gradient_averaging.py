"""Data parallelism: gradients are averaged over replicas of the pipeline while ops run.

A rank averages the gradient of each stage that it permanently holds
(:func:`..model.transfers.holders`) as soon as this gradient is complete:

- normally at the end of the stage's last W or BW on the rank;
- if the stage's gradients are sent, at the end of the rank's last op and of the last gradient that
  arrives;
- if the stage is replicated within the pipeline, at the end of the last op of all its ranks.

The rank averages one stage at a time, in the order in which their gradients become complete (of two
at the same time, the lower stage first), over a link that carries nothing else. Ops do not wait for
the averages, but the optimizer step does.

With D replicas, an average is a ring all-reduce
(:func:`.steady_state.iteration_graph.all_reduces`): 2 (D - 1) messages, each with 1 / D of the
gradient. For stages wrapped in ``fully_shard``, the second half of the messages stands for the
all-gather before the next step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..model.ops import OpKind, fields_of
from ..model.schedule import Averaged, Schedule, Timing, TransferKind
from ..model.transfers import holders, size


class Due(NamedTuple):
    """An average to be run: ``rank`` averages the gradient of ``stage`` in ``duration`` ms.

    ``last``: the position in the rank's order of the last op that adds to the gradient; None if no
    op of the rank does, or if the average also waits for transfers or for other ranks. ``ranks``:
    all ranks that hold the stage.
    """

    rank: int
    stage: int
    duration: float
    last: int | None
    ranks: tuple[int, ...]


def due(schedule: Schedule) -> list[Due]:
    """All averages of an iteration, sorted by stage, then rank; an empty list without replicas."""
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
    """For each rank, the intervals in which it averages its stages, given the timing of the ops."""
    found: list[list[Averaged]] = [[] for _ in timing.start]
    ready = [(_ready(schedule, timing, one), one) for one in due(schedule)]
    for at, one in sorted(ready, key=lambda pair: (pair[0], pair[1].stage)):
        row = found[one.rank]
        start = max(at, row[-1].end) if row else at
        row.append(Averaged(one.stage, start, start + one.duration))
    return tuple(map(tuple, found))


def share_until(schedule: Schedule, timing: Timing, until: float) -> float:
    """The factor by which to scale all averages so that the last one ends at ``until`` (ms).

    It is at least 0, and 1 if there are no averages. ``until`` must not be before the end of the
    last op. A rank's averages run one after the other. So the end of its last one is a maximum over
    its averages: of the time when an average can start, plus the durations of this average and of
    all later ones. The factor is the largest with which this end exceeds ``until`` on no rank.
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
