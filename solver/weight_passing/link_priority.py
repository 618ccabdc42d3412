"""Link priority: of the transfers that share a wire, the one that is needed first goes first."""

from __future__ import annotations

import heapq

import numpy as np

from pipeloom.ir.cost.dependency_graph import ScheduleGraph
from pipeloom.ir.cost.transfer_order import listed, transfer_wires
from pipeloom.ir.kernels import kernel
from pipeloom.ir.model.ops import FloatArray, IntArray
from pipeloom.ir.model.schedule import Schedule


@kernel
def priority_first(  # noqa: PLR0917, C901
    first: IntArray,  # (N + 1,) start of each node's edges
    to: IntArray,  # (E,) target node of each edge
    delay: FloatArray,  # (E,) time from the end of a node to the start of the target node
    missing: IntArray,  # (N,) in: number of edges into each node; out: those left
    duration: FloatArray,  # (N,)
    held_first: IntArray,  # (N + 1,) start of each node's wires in ``held``
    held: IntArray,  # wires, numbered from 0
    free: FloatArray,  # (number of wires,) in: zeros; out: when each wire is free
    priority: FloatArray,  # (N,) the lowest goes first
) -> IntArray:
    """Simulate a graph of ops and transfers; return the nodes in the order of their starts.

    Nodes that can never start are left out. A node that is ready starts once its wires are free. If
    several nodes need a wire when it becomes free, the node with the lowest number in ``priority``
    gets it; on ties, the node with the lowest index. A wire never waits for a node that is not
    ready, whereas :func:`pipeloom.ir.cost.event_kernels.first_come` assigns wires in advance.
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
            if node < nodes:  # otherwise a wire has become free
                heapq.heappush(waiting, (priority[node], node))
        held_up = [(0.0, 0)]
        held_up.pop()
        while len(waiting) > 0:
            head = heapq.heappop(waiting)
            node = head[1]
            able = True
            for i in range(held_first[node], held_first[node + 1]):
                able = able and free[held[i]] <= now
            if not able:
                held_up.append(head)
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


def by_link_priority(schedule: Schedule, priority: FloatArray) -> Schedule:
    """Return ``schedule`` with its transfers in the order in which priorities let them start.

    ``priority``: a number for each transfer; the one with the lowest number goes first. The result
    has no times; simulating it gives the times that follow from the priorities, or earlier ones.
    ``schedule`` is returned unchanged if the profile has no links or the schedule no transfers.
    Raises InvalidScheduleError in the same cases as
    :func:`pipeloom.ir.cost.transfer_order.in_sending_order`.
    """
    if schedule.problem.profile.links is None or not schedule.transfers:
        return schedule
    ops = np.full(schedule.num_ops, -np.inf)
    graph, wires = ScheduleGraph.of(schedule), transfer_wires(schedule)
    held = wires.first, wires.number, wires.free
    priorities = np.concatenate([ops, priority])
    return listed(schedule, priority_first(*graph.successors, graph.duration, *held, priorities))
