"""Pairs: an F and a BW that a rank runs at once, as one op of its own length.

``Schedule.pairs`` has, of each rank, where the pairs begin in its order: an F there, the BW of
another (stage, microbatch) right after it. Both start when the rank is free and the inputs of both
have come, and both end :meth:`..model.profile.Profile.pair_time` later. The order lists the F
first, so what a rank holds counts both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from ..errors import InvalidScheduleError
from ..model.ops import FloatArray, IntArray, Op, OpKind
from ..model.placement import Passing, PlacementKind
from ..model.problem import Problem
from ..model.schedule import Schedule
from .cost_tables import Costs

Edges: TypeAlias = tuple[IntArray, IntArray, FloatArray]  # from node, to node, delay


def pairs_save(problem: Problem) -> bool:
    """Whether the optimizer may make pairs, and its bounds are about schedules with them.

    Where they save time and activations alone travel, with one copy of the weights or one each way;
    R, O and L do not run beside pairs.
    """
    placement = problem.placement
    one_way = placement.passing is Passing.ACTIVATIONS
    if not one_way and placement.kind is not PlacementKind.BIDIRECTIONAL:
        return False
    if all(stage.saving <= 0 for stage in problem.profile.stages):
        return False
    return not np.isfinite(Costs.of(problem).durations[[OpKind.R, OpKind.O]]).any()


def check_pairs(schedule: Schedule) -> None:
    """Raises InvalidScheduleError, naming each pair that is not an F and the BW of something
    else."""
    errors = []
    for rank, places in enumerate(schedule.pairs):
        ops = schedule.order[rank]
        for at in places:
            both = [Op.unpack(int(op)) for op in ops[at : at + 2]]
            if not _is_pair(both):
                found = " ".join(map(str, both)) or "nothing"
                errors.append(
                    f"pairs: rank {rank}, op {at}: expected an F and the BW of another stage or "
                    f"microbatch, got {found}"
                )
    if errors:
        raise InvalidScheduleError(errors)


def _is_pair(ops: Sequence[Op]) -> bool:
    if [op.kind for op in ops] != [OpKind.F, OpKind.BW]:
        return False
    forward, backward = ops
    return (forward.stage, forward.microbatch) != (backward.stage, backward.microbatch)


def op_durations(schedule: Schedule, flat: IntArray, costs: Costs) -> FloatArray:
    """How long each of all ranks' ops takes, one rank after the other."""
    durations = costs.of_ops(flat).copy()
    for first in _firsts(schedule):
        forward, backward = (Op.unpack(int(op)).stage for op in flat[first : first + 2])
        profile = schedule.problem.profile
        durations[first : first + 2] = profile.pair_time(forward, backward)
    return durations


def together(schedule: Schedule, edges: Sequence[Edges], first_op: int, nodes: int) -> list[Edges]:
    """``edges`` such that both ops of a pair wait for what either waits for, and not for each
    other.

    ``first_op``: the node of the first op; ``nodes``: above every node that an edge leads to.
    """
    firsts = _firsts(schedule)
    if not firsts:
        return list(edges)
    twin = np.full(nodes, -1)
    begin = np.array(firsts) + first_op
    twin[begin], twin[begin + 1] = begin + 1, begin
    result = []
    for origin, to, delay in edges:
        other = twin[to]
        keep = origin != other
        both = keep & (other >= 0)
        result += [(origin[keep], to[keep], delay[keep]), (origin[both], other[both], delay[both])]
    return result


def _firsts(schedule: Schedule) -> list[int]:
    """Where the pairs begin among all ranks' ops, one rank after the other."""
    offsets = np.cumsum([0, *map(len, schedule.order)]).tolist()
    return [offsets[rank] + at for rank, places in enumerate(schedule.pairs) for at in places]
