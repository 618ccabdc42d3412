"""In which order transfers go over wires that they share: those whose receivers need them first."""

from __future__ import annotations

import heapq

import numba
import numpy as np

from pipeloom.ir.cost.dependency_graph import ScheduleGraph
from pipeloom.ir.cost.transfer_order import listed, transfer_wires
from pipeloom.ir.model.ops import FloatArray, IntArray
from pipeloom.ir.model.schedule import Schedule


@numba.njit(cache=True, nogil=True)
def urgent_first(  # noqa: PLR0917, C901
    first: IntArray,  # (N + 1,) where each node's edges begin
    to: IntArray,  # (E,) node that each edge leads to
    delay: FloatArray,  # (E,)
    missing: IntArray,  # (N,) edges into each node; what is left of them afterwards
    duration: FloatArray,  # (N,)
    held_first: IntArray,  # (N + 1,) where each node's wires begin in ``held``
    held: IntArray,  # wires, numbered from 0
    free: FloatArray,  # (number of wires,) zeros in, when each is free out
    urgency: FloatArray,  # (N,) less goes first
) -> IntArray:
    """The nodes that can be timed, in the order in which they start.

    A node that is ready starts once its wires are free. Where several want a wire that becomes
    free, the most urgent takes it, of equals that with the lower number. Nobody waits for one that
    is not yet ready.
    """
    nodes = duration.shape[0]
    ready = np.zeros(nodes)
    order = np.empty(nodes, dtype=np.int64)
    done = 0
    events = [(0.0, node) for node in range(nodes) if missing[node] == 0]
    heapq.heapify(events)
    waiting = [(0.0, 0)]
    waiting.pop()
    while len(events) > 0:
        now = events[0][0]
        while len(events) > 0 and events[0][0] <= now:
            node = heapq.heappop(events)[1]
            if node < nodes:  # else a wire has become free
                heapq.heappush(waiting, (urgency[node], node))
        held_up = [(0.0, 0)]
        held_up.pop()
        while len(waiting) > 0:
            urgent = heapq.heappop(waiting)
            node = urgent[1]
            able = True
            for i in range(held_first[node], held_first[node + 1]):
                able = able and free[held[i]] <= now
            if not able:
                held_up.append(urgent)
                continue
            end = now + duration[node]
            for i in range(held_first[node], held_first[node + 1]):
                free[held[i]] = end
            if held_first[node] < held_first[node + 1]:
                heapq.heappush(events, (end, nodes))
            order[done] = node
            done += 1
            for edge in range(first[node], first[node + 1]):
                other = to[edge]
                ready[other] = max(ready[other], end + delay[edge])
                missing[other] -= 1
                if missing[other] == 0:
                    heapq.heappush(events, (ready[other], other))
        waiting = held_up
        heapq.heapify(waiting)
    return order[:done]


def most_urgent_first(schedule: Schedule, urgency: FloatArray) -> Schedule:
    """``schedule`` with its transfers listed as they set out where wires take the most urgent
    first.

    ``urgency``: one number a transfer, less is more urgent. Simulating the list gives these times
    or better ones. Untimed; as it is where the profile has no links. Raises InvalidScheduleError as
    :func:`pipeloom.ir.cost.transfer_order.in_sending_order` does.
    """
    if schedule.problem.profile.links is None or not schedule.transfers:
        return schedule
    ops = np.full(schedule.num_ops, -np.inf)
    graph, wires = ScheduleGraph.of(schedule), transfer_wires(schedule)
    held = wires.first, wires.number, wires.free
    urgencies = np.concatenate([ops, urgency])
    return listed(schedule, urgent_first(*graph.successors, graph.duration, *held, urgencies))
