"""Consecutive iterations of a schedule, with the times of each op; and a schedule whose transfers
are posted between ops."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pipeloom.ir import Schedule, Timing
from pipeloom.ir.cost.gradient_averaging import averages
from pipeloom.ir.cost.graph_simulator import peaks
from pipeloom.ir.cost.steady_state.iteration_graph import IterationGraph
from pipeloom.ir.cost.steady_state.send_points import between_ops
from pipeloom.ir.cost.steady_state.steady_state import played
from pipeloom.ir.model.ops import FloatArray, offsets_of


@dataclass(frozen=True)
class Iterations:
    """``timings``: of each iteration, with a common clock.

    ``begin``: when each rank begins each iteration and, in the last row, has finished all of them,
    shape (iterations + 1, P).
    """

    timings: tuple[Timing, ...]
    begin: FloatArray


def play_iterations(schedule: Schedule, iterations: int = 1) -> Iterations:
    iteration = IterationGraph.of(schedule)
    start, end, done = played(schedule, iteration, iterations)
    bounds = offsets_of(schedule.order)[1:-1]
    timings = []
    for times in zip(start, end, strict=True):
        moved = np.stack([row[iteration.transfers] for row in times], axis=1)
        starts, ends = (tuple(np.split(row[iteration.ops], bounds)) for row in times)
        timing = Timing(starts, ends, peaks(schedule), moved)
        if schedule.problem.profile.data_parallel is not None:
            timing = replace(timing, averages=averages(schedule, timing))
        timings.append(timing)
    return Iterations(tuple(timings), np.vstack([start[:, : iteration.ranks], done]))


def posted_between_ops(schedule: Schedule) -> Schedule:
    """``schedule`` without times, with the same ops and its transfers modified by
    :func:`between_ops`."""
    routes = between_ops(schedule)
    columns = (column.tolist() for column in (routes.after, routes.before, routes.room))
    changed = (
        replace(transfer, after=after, before=before, room=room)
        for transfer, after, before, room in zip(schedule.transfers, *columns, strict=True)
    )
    return replace(schedule, transfers=tuple(changed), timing=None)
