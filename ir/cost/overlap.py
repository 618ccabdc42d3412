"""Pairs: an F and a BW that a rank runs at once, as one op of its own length.

``Schedule.pairs`` has, of each rank, where the pairs begin in its order: an F there, the BW of
another (stage, microbatch) right after it. Both start when the rank is free and the inputs of both
have come, and both end :meth:`..model.profile.Profile.pair_time` later. The order lists the F
first, so what a rank holds counts both.
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
    """Whether the optimizer may make pairs, and its bounds are about schedules with them.

    Where they save time and activations alone are passed, with one copy of the weights or one each
    way; R, O and L do not run beside pairs.
    """
    placement = problem.placement
    one_way = placement.passing is Passing.ACTIVATIONS
    if not one_way and placement.kind is not PlacementKind.BIDIRECTIONAL:
        return False
    if all(stage.saving <= 0 for stage in problem.profile.stages):
        return False
    return not np.isfinite(Costs.of(problem).durations[[OpKind.R, OpKind.O]]).any()


def check_pairs(schedule: Schedule) -> None:
    """Raises InvalidScheduleError, naming each pair that is no F and BW of different things."""
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
    """Positions at which pairs begin among all ranks' ops, one rank after the other."""
    offsets = offsets_of(schedule.order).tolist()
    places = enumerate(schedule.pairs)
    return np.array([offsets[rank] + at for rank, row in places for at in row], dtype=np.int64)


def op_durations(schedule: Schedule, flat: IntArray, costs: Costs) -> FloatArray:
    """How long each of all ranks' ops takes, one rank after the other."""
    durations, starts = costs.of_ops(flat).copy(), pair_starts(schedule)
    _, stage, microbatch = fields_of(flat)
    columns = (stage[starts], stage[starts + 1], microbatch[starts], microbatch[starts + 1])
    pairs = np.stack(columns, axis=1).tolist()
    times = [schedule.problem.profile.pair_time(*pair) for pair in pairs]
    durations[starts] = durations[starts + 1] = times
    return durations
