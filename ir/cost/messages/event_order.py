"""One order of everything that a schedule plans, on all ranks together."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from ...kernels import kernel
from ...model.ops import FloatArray, IntArray, offsets_of
from ...model.schedule import Schedule
from ..dependency_graph import Successors, undelayed
from .message_table import Messages, counts_before


@dataclass(frozen=True, slots=True, eq=False)
class EventOrder:
    """Places in one order of all ops, departures and arrivals, in which each follows its causes.

    ``ops[r][i]``: of the start of rank r's i-th op; ``leaves[x]``, ``arrives[x]``: of message x.
    The order is by planned time; at one time messages come before ops, as far as they do not
    wait for them.
    """

    ops: tuple[IntArray, ...]
    leaves: IntArray
    arrives: IntArray

    @classmethod
    def of(cls, schedule: Schedule, messages: Messages) -> EventOrder:
        """The order of a timed schedule's ops and messages."""
        timing, offsets = schedule.timing, offsets_of(schedule.order)
        assert timing is not None, "the schedule is timed"
        moments = np.stack([messages.leaves, messages.arrives], axis=1).ravel()
        times = np.concatenate([*timing.start, moments])
        first, to, _, missing = _successors(messages, offsets)
        place, ops = _in_order(times, int(offsets[-1]), first, to, missing), int(offsets[-1])
        return cls(tuple(np.split(place[:ops], offsets[1:-1])), place[ops::2], place[ops + 1 :: 2])

    def boundary(self, rank: IntArray, place: IntArray) -> IntArray:
        """How many ops of each ``rank`` come before ``place``, (n,)."""
        return counts_before(self.ops, rank, place)


def _successors(messages: Messages, offsets: IntArray) -> Successors:
    """Edges from each op (numbered rank after rank), then from each departure and arrival."""
    ops, later = int(offsets[-1]), np.flatnonzero(messages.earlier >= 0)
    leaves = ops + 2 * np.arange(messages.count)
    behind = np.setdiff1d(np.arange(1, ops), offsets)
    edges = [
        undelayed(behind - 1, behind),
        undelayed(leaves, leaves + 1),
        undelayed(leaves[messages.earlier[later]] + 1, leaves[later]),
        *messages.routes.edges(offsets, leaves, leaves + 1).values(),
    ]
    return Successors.of(edges, ops + 2 * messages.count)


@kernel
def _in_order(
    times: FloatArray,  # (N,)
    ops: int,  # of the nodes, the first
    first: IntArray,  # (N + 1,) where each node's edges begin
    to: IntArray,  # (E,) node that each edge leads to
    missing: IntArray,  # (N,) edges into each node; zeros afterwards
) -> IntArray:
    """The place of each node in an order by time, of nodes that are no ops first."""
    ready = [(times[n], int(n < ops), n) for n in range(len(times)) if missing[n] == 0]
    heapq.heapify(ready)
    place = np.zeros(len(times), dtype=np.int64)
    at = 0
    while len(ready) > 0:
        node = heapq.heappop(ready)[2]
        place[node] = at
        at += 1
        for edge in range(first[node], first[node + 1]):
            other = to[edge]
            missing[other] -= 1
            if missing[other] == 0:
                heapq.heappush(ready, (times[other], int(other < ops), other))
    return place
