"""The cost model if weights are sent or ops run in pairs: longest paths through ops and transfers.

The rules for ops are the same as in :mod:`.simulator`. In addition, an op waits for every transfer
to its rank whose ``before``, and every transfer from its rank whose ``blocks``, is at or before the
op's position. A transfer starts as described in :class:`..model.schedule.Transfer`, has the
duration in :func:`..model.transfers.transfer_delays`, and does not occupy a rank. If the profile
has links, a transfer occupies the wires between its ranks, and the transfers on a wire follow each
other in the order of the schedule's list.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ..errors import InvalidScheduleError
from ..model.ops import IntArray, Op
from ..model.schedule import Schedule, Timing, Transfer
from .dependency_graph import ScheduleGraph, Successors, undelayed
from .event_kernels import Wires, first_come
from .remat import held, pulled
from .transfer_order import transfer_wires


def simulate_transfers(schedule: Schedule) -> Timing:
    """The simulated timing of all ops and transfers of ``schedule``.

    Raises InvalidScheduleError if a transfer is out of range, an input is never computed, there are
    R, O or L ops, or ops and transfers wait for each other. In the last case, the error names the
    first op of each rank that can never start.
    """
    if pulled(schedule.order):
        raise InvalidScheduleError(["R, O and L: expected none together with transfers or pairs"])
    graph, ops = ScheduleGraph.of(schedule), schedule.num_ops
    turns, nodes = transfer_wires(schedule).turns(), len(graph.duration)
    edges = Successors.of([*graph.all_edges, undelayed(*turns)], nodes)
    start, end = np.zeros((2, nodes))
    if len(first_come(*edges, graph.duration, *Wires.of(nodes), True, start, end)) < nodes:
        raise InvalidScheduleError(_stuck(graph, edges.missing > 0, turns))
    bounds = graph.offsets[1:-1]
    return Timing(
        tuple(np.split(start[:ops], bounds)),
        tuple(np.split(end[:ops], bounds)),
        peaks(schedule),
        np.stack([start[ops:], end[ops:]], axis=1),
    )


def _stuck(
    graph: ScheduleGraph, held_up: npt.NDArray[np.bool_], turns: tuple[IntArray, IntArray]
) -> list[str]:
    """An error line for each rank with an op that can never start, with what this op waits for.

    ``held_up``: whether each node can never start, (N,). ``turns``: nodes that follow each other on
    a wire (:meth:`.event_kernels.Wires.turns`).
    """
    schedule, ops = graph.schedule, graph.schedule.num_ops
    behind = {
        later - ops: earlier - ops
        for earlier, later in zip(*turns, strict=True)
        if held_up[earlier]
    }
    waiting = [(t, behind.get(i)) for i, t in enumerate(schedule.transfers) if held_up[ops + i]]
    lines = []  # never empty: a cycle has an op, as transfers wait only for earlier ones
    for rank, (first, last) in enumerate(pairwise(graph.offsets.tolist())):
        if not held_up[first:last].any():
            continue
        at = int(held_up[first:last].argmax())
        needs = [
            _named(schedule, t, other)
            for t, other in waiting
            if (rank, at) in ((t.target, t.before), (t.source, t.blocks))
        ]
        why = f"waits for {', '.join(needs)}" if needs else "its input never comes"
        op = Op.unpack(int(schedule.order[rank][at]))
        lines.append(f"rank {rank} can never start {op} (its op {at}): {why}")
    return lines


def _named(schedule: Schedule, transfer: Transfer, behind: int | None) -> str:
    if behind is None:
        return str(transfer)
    return f"{transfer} (listed after {schedule.transfers[behind]}, with which it shares a wire)"


def peaks(schedule: Schedule) -> tuple[float, ...]:
    """The peak memory of each rank, the largest sum of M_B's and M_W's that it holds, (P,)."""
    rows = held(schedule.problem, schedule.order)
    return tuple(float(np.max(row, initial=0.0)) for row in rows)
