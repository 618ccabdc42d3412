"""One order of everything that a schedule plans, on all ranks together."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from pipeloom.ir.model.schedule import Schedule

from .messages import Message


@dataclass(frozen=True, slots=True)
class Agenda:
    """Places in one order of all ops, departures and arrivals, in which each follows its causes.

    ``ops[r][i]``: of the start of rank r's i-th op; ``leaves[x]``, ``arrives[x]``: of message x.
    The order is by planned time; at one time what travels comes before what computes, as far as
    it does not wait for it.
    """

    ops: tuple[tuple[int, ...], ...]
    leaves: tuple[int, ...]
    arrives: tuple[int, ...]

    def boundary(self, rank: int, place: int) -> int:
        """How many of the rank's ops come before ``place``."""
        return bisect_left(self.ops[rank], place)


def agenda(schedule: Schedule, messages: Sequence[Message]) -> Agenda:
    """The agenda of a timed schedule and what travels in it."""
    timing = schedule.timing
    assert timing is not None, "compute() times the schedule"
    first = [0]
    for ops in schedule.order:
        first.append(first[-1] + len(ops))
    times = [t for start in timing.start for t in start.tolist()]
    times += [t for message in messages for t in (message.leaves, message.arrives)]
    place = _in_order(times, _followers(messages, first), first[-1])
    travel = place[first[-1] :]
    rows = tuple(tuple(place[a:b]) for a, b in pairwise(first))
    return Agenda(rows, tuple(travel[::2]), tuple(travel[1::2]))


def _followers(messages: Sequence[Message], first: list[int]) -> list[list[int]]:
    """What each op (numbered rank after rank), then each departure and arrival, leads to."""
    ops = first[-1]
    followers: list[list[int]] = [[] for _ in range(ops + 2 * len(messages))]
    for start, stop in pairwise(first):
        for i in range(start + 1, stop):
            followers[i - 1].append(i)
    for x, m in enumerate(messages):
        leaves, arrives = ops + 2 * x, ops + 2 * x + 1
        followers[leaves].append(arrives)
        if m.earlier is not None:
            followers[ops + 2 * m.earlier + 1].append(leaves)
        if m.after > 0:
            followers[first[m.source] + m.after - 1].append(leaves)
        if m.room > 0:
            followers[first[m.target] + m.room - 1].append(leaves)
        if first[m.target] + m.before < first[m.target + 1]:
            followers[arrives].append(first[m.target] + m.before)
        if m.blocks is not None and first[m.source] + m.blocks < first[m.source + 1]:
            followers[arrives].append(first[m.source] + m.blocks)
    return followers


def _in_order(times: list[float], followers: list[list[int]], ops: int) -> list[int]:
    """The place of each node in an order by time, of nodes that are no ops first."""
    missing = [0] * len(times)
    for row in followers:
        for node in row:
            missing[node] += 1
    ready = [(times[n], n < ops, n) for n, number in enumerate(missing) if not number]
    heapq.heapify(ready)
    place = [0] * len(times)
    for at in range(len(times)):
        node = heapq.heappop(ready)[2]
        place[node] = at
        for other in followers[node]:
            missing[other] -= 1
            if not missing[other]:
                heapq.heappush(ready, (times[other], other < ops, other))
    return place
