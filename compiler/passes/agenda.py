"""One order of everything that a weight-passing schedule plans, on all ranks together."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise

from pipeloom.ir.schedule import Schedule
from pipeloom.ir.travel import previous


@dataclass(frozen=True, slots=True)
class Agenda:
    """Places in one order of all ops, departures and arrivals, in which each follows its causes.

    ``ops[r][i]``: of the start of rank r's i-th op; ``leaves[x]``, ``arrives[x]``: of transfer x.
    The order is by planned time; at one time what travels comes before what computes, as far as
    it does not wait for it.
    """

    ops: tuple[tuple[int, ...], ...]
    leaves: tuple[int, ...]
    arrives: tuple[int, ...]

    def boundary(self, rank: int, place: int) -> int:
        """How many of the rank's ops come before ``place``."""
        return bisect_left(self.ops[rank], place)


def agenda(schedule: Schedule) -> Agenda:
    """The agenda of a timed schedule whose microbatches stay on ranks."""
    timing = schedule.timing
    assert timing is not None, "compute() times the schedule"
    first = [0]
    for ops in schedule.order:
        first.append(first[-1] + len(ops))
    times = [t for start in timing.start for t in start.tolist()]
    times += [t for pair in timing.transfers.tolist() for t in pair]
    place = _in_order(times, _followers(schedule, first), first[-1])
    travel = place[first[-1] :]
    rows = tuple(tuple(place[a:b]) for a, b in pairwise(first))
    return Agenda(rows, tuple(travel[::2]), tuple(travel[1::2]))


def _followers(schedule: Schedule, first: list[int]) -> list[list[int]]:
    """What each op (numbered rank after rank), then each departure and arrival, leads to."""
    ops = first[-1]
    followers: list[list[int]] = [[] for _ in range(ops + 2 * len(schedule.transfers))]
    for start, stop in pairwise(first):
        for i in range(start + 1, stop):
            followers[i - 1].append(i)
    for x, (t, earlier) in enumerate(
        zip(schedule.transfers, previous(schedule.transfers), strict=True)
    ):
        leaves, arrives = ops + 2 * x, ops + 2 * x + 1
        followers[leaves].append(arrives)
        if earlier is not None:
            followers[ops + 2 * earlier + 1].append(leaves)
        if t.after > 0:
            followers[first[t.source] + t.after - 1].append(leaves)
        if t.room > 0:
            followers[first[t.target] + t.room - 1].append(leaves)
        if first[t.target] + t.before < first[t.target + 1]:
            followers[arrives].append(first[t.target] + t.before)
        if t.blocks is not None and first[t.source] + t.blocks < first[t.source + 1]:
            followers[arrives].append(first[t.source] + t.blocks)
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
