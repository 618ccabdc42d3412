"""One order of everything that a schedule plans, on all ranks together."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from pipeloom.ir.cost.dependency_graph import MessageTable, Successors, edges_of, undelayed
from pipeloom.ir.model.ops import offsets_of
from pipeloom.ir.model.schedule import Schedule

from .messages import Message


@dataclass(frozen=True, slots=True)
class EventOrder:
    """Places in one order of all ops, departures and arrivals, in which each follows its causes.

    ``ops[r][i]``: of the start of rank r's i-th op; ``leaves[x]``, ``arrives[x]``: of message x.
    The order is by planned time; at one time messages come before ops, as far as they do not
    wait for them.
    """

    ops: tuple[tuple[int, ...], ...]
    leaves: tuple[int, ...]
    arrives: tuple[int, ...]

    @classmethod
    def of(cls, schedule: Schedule, messages: Sequence[Message]) -> EventOrder:
        """The order of a timed schedule's ops and messages."""
        timing, offsets = schedule.timing, offsets_of(schedule.order)
        assert timing is not None, "compute() times the schedule"
        times = [t for start in timing.start for t in start.tolist()]
        times += [t for message in messages for t in (message.leaves, message.arrives)]
        place = _in_order(times, _successors(messages, offsets.tolist()), int(offsets[-1]))
        moved = place[offsets[-1] :]
        rows = tuple(tuple(place[a:b]) for a, b in pairwise(offsets.tolist()))
        return cls(rows, tuple(moved[::2]), tuple(moved[1::2]))

    def boundary(self, rank: int, place: int) -> int:
        """How many of the rank's ops come before ``place``."""
        return bisect_left(self.ops[rank], place)


def _successors(messages: Sequence[Message], offsets: list[int]) -> Successors:
    """Edges from each op (numbered rank after rank), then from each departure and arrival."""
    leaves = offsets[-1] + 2 * np.arange(len(messages))
    routes = MessageTable.of(
        [(m.source, m.target, m.after, m.room, m.before, m.blocks) for m in messages]
    )
    onward = [(m.earlier, x) for x, m in enumerate(messages) if m.earlier is not None]
    earlier, later, _ = edges_of(onward)
    edges = [
        edges_of([(i - 1, i) for a, b in pairwise(offsets) for i in range(a + 1, b)]),
        undelayed(leaves, leaves + 1),
        undelayed(leaves[earlier] + 1, leaves[later]),
        *routes.edges(np.array(offsets), leaves, leaves + 1).values(),
    ]
    return Successors.of(edges, offsets[-1] + 2 * len(messages))


def _in_order(times: list[float], successors: Successors, ops: int) -> list[int]:
    """The place of each node in an order by time, of nodes that are no ops first."""
    first, to, _, missing = (part.tolist() for part in successors)
    ready = [(times[n], n < ops, n) for n, number in enumerate(missing) if not number]
    heapq.heapify(ready)
    place = [0] * len(times)
    for at in range(len(times)):
        node = heapq.heappop(ready)[2]
        place[node] = at
        for other in to[first[node] : first[node + 1]]:
            missing[other] -= 1
            if not missing[other]:
                heapq.heappush(ready, (times[other], other < ops, other))
    return place
