"""Pairs: an F and a BW that a rank runs at the same time, like one op with its own duration.

For each rank, ``Schedule.pairs`` has the positions in its order at which pairs begin: there is an F
at the position, and the BW of another (stage, microbatch) at the next one. Both ops start when the
rank is free and the inputs of both have arrived, and both end
:meth:`..model.profile.Profile.pair_time` later. As the F is listed first, the memory of both
microbatches counts during the pair.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import InvalidScheduleError
from ..model.ops import FloatArray, IntArray, Op, OpKind, fields_of, offsets_of, unpack
from ..model.placement import Passing, PlacementKind
from ..model.problem import Problem
from ..model.schedule import Schedule
from .cost_tables import Costs


def overlap_saves(problem: Problem) -> bool:
    """Whether the optimizer may form pairs, so that its bounds must cover schedules with pairs.

    It may if a pair saves time on at least one stage, the placement sends only activations or is
    bidirectional, and no stage can be recomputed or offloaded, as R, O and L cannot be combined
    with pairs.
    """
    placement = problem.placement
    one_way = placement.passing is Passing.ACTIVATIONS
    if not one_way and placement.kind is not PlacementKind.BIDIRECTIONAL:
        return False
    if all(stage.saving <= 0 for stage in problem.profile.stages):
        return False
    return not np.isfinite(Costs.of(problem).durations[[OpKind.R, OpKind.O]]).any()


def check_pairs(schedule: Schedule) -> None:
    """Raise InvalidScheduleError if a pair is not an F and the BW of another (stage, microbatch).

    The error names each of these pairs.
    """
    errors = []
    for rank, places in enumerate(schedule.pairs):
        for at in places:
            both = unpack(schedule.order[rank][at : at + 2])
            if not _is_pair(both):
                found = " ".join(map(str, both)) or "nothing"
                errors.append(
                    f"pairs: rank {rank}, op {at}: expected an F and the BW of another stage or "
                    f"microbatch, got {found}"
                )
    if errors:
        raise InvalidScheduleError(errors)


def _is_pair(ops: Sequence[Op]) -> bool:
    kinds, things = [op.kind for op in ops], [(op.stage, op.microbatch) for op in ops]
    return kinds == [OpKind.F, OpKind.BW] and things[0] != things[1]


def pair_starts(schedule: Schedule) -> IntArray:
    """The position of each pair's F in the concatenation of all ranks' ops, (number of pairs,)."""
    offsets = offsets_of(schedule.order).tolist()
    places = enumerate(schedule.pairs)
    return np.array([offsets[rank] + at for rank, row in places for at in row], dtype=np.int64)


def op_durations(schedule: Schedule, flat: IntArray, costs: Costs) -> FloatArray:
    """The duration of each op in ms, (N,); each op of a pair has the duration of the pair.

    ``flat``: the concatenation of all ranks' packed ops, (N,).
    """
    durations, starts = costs.of_ops(flat).copy(), pair_starts(schedule)
    _, stage, microbatch = fields_of(flat)
    columns = (stage[starts], stage[starts + 1], microbatch[starts], microbatch[starts + 1])
    pairs = np.stack(columns, axis=1).tolist()
    times = [schedule.problem.profile.pair_time(*pair) for pair in pairs]
    durations[starts] = durations[starts + 1] = times
    return durations
