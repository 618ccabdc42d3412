"""The event-driven kernels: what is ready first goes first, on all its wires at once or on one
after the other."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numba
import numpy as np

from ..model.ops import FloatArray, IntArray


@numba.njit(cache=True, nogil=True)
def first_come(  # noqa: PLR0917
    first: IntArray,  # (N + 1,) where each node's edges begin
    to: IntArray,  # (E,) node that each edge leads to; N + n is node n one round later
    delay: FloatArray,  # (E,)
    missing: IntArray,  # (rounds * N,) edges into each node; what is left of them afterwards
    duration: FloatArray,  # (N,)
    held_first: IntArray,  # (N + 1,) where each node's wires begin in ``held``
    held: IntArray,  # wires, numbered from 0
    free: FloatArray,  # (number of wires,) zeros in, when each is free out
    start: FloatArray,  # (rounds * N,) zeros in, start times out
) -> IntArray:
    """Times all nodes, ``rounds`` times over; those that could be timed, in the order they start.

    A node is ready once all that leads to it has ended; it starts once it is ready and its wires
    are free, and keeps them to its end. Nodes take their wires in the order in which they become
    ready, the lower number first where they do so together: within 1e-9 of a round's work, or it
    would be rounding errors that decide between symmetrical messages.
    """
    nodes, total = duration.shape[0], missing.shape[0]
    order = np.empty(total, dtype=np.int64)
    done = 0
    moment = max(1e-9 * duration.sum(), 1e-300)
    queue = [(0.0, node) for node in range(total) if missing[node] == 0]
    heapq.heapify(queue)
    while len(queue) > 0:
        _, node = heapq.heappop(queue)
        kind = node % nodes
        begin = start[node]
        for i in range(held_first[kind], held_first[kind + 1]):
            begin = max(begin, free[held[i]])
        end = begin + duration[kind]
        for i in range(held_first[kind], held_first[kind + 1]):
            free[held[i]] = end
        start[node] = begin
        order[done] = node
        done += 1
        for edge in range(first[kind], first[kind + 1]):
            other = node - kind + to[edge]
            if other < total:
                start[other] = max(start[other], end + delay[edge])
                missing[other] -= 1
                if missing[other] == 0:
                    heapq.heappush(queue, (np.rint(start[other] / moment), other))
    return order[:done]


@numba.njit(cache=True, nogil=True)
def in_queues(  # noqa: PLR0917
    first: IntArray,  # these as in :func:`first_come`
    to: IntArray,
    delay: FloatArray,
    missing: IntArray,
    duration: FloatArray,
    held_first: IntArray,
    held: IntArray,
    free: FloatArray,
    share: FloatArray,  # as long as ``held``: of its duration, for how much a node keeps each wire
    start: FloatArray,  # (rounds * N,) zeros in, start times out
    end: FloatArray,  # (rounds * N,) zeros in, end times out
) -> int:
    """Times all nodes, ``rounds`` times over; how many could be timed.

    As :func:`first_come`, but a node passes its wires one after the other: each has a queue of its
    own, which a node joins when it starts on the wire before. It keeps a wire for its share of the
    time, and ends once it has left them all.
    """
    nodes, total = duration.shape[0], missing.shape[0]
    came = np.zeros(total)  # at the end of the queue that a node is in
    done = 0
    moment = max(1e-9 * duration.sum(), 1e-300)
    queue = [(0.0, node, 0) for node in range(total) if missing[node] == 0]
    heapq.heapify(queue)
    while len(queue) > 0:
        _, node, hop = heapq.heappop(queue)
        kind = node % nodes
        wire, last = held_first[kind] + hop, held_first[kind + 1]
        begin, takes = came[node], duration[kind]
        if wire < last:
            begin = max(begin, free[held[wire]])
            takes *= share[wire]
            free[held[wire]] = begin + takes
        if hop == 0:
            start[node] = begin
        end[node] = max(end[node], begin + takes)
        if wire + 1 < last:
            came[node] = begin
            heapq.heappush(queue, (np.rint(begin / moment), node, hop + 1))
            continue
        done += 1
        for edge in range(first[kind], first[kind + 1]):
            other = node - kind + to[edge]
            if other < total:
                came[other] = max(came[other], end[node] + delay[edge])
                missing[other] -= 1
                if missing[other] == 0:
                    heapq.heappush(queue, (np.rint(came[other] / moment), other, 0))
    return done


def numbered(wires: Sequence[Sequence[str]]) -> tuple[IntArray, IntArray, FloatArray]:
    """``held_first``, ``held`` and ``free`` of :func:`first_come` from each node's wires by
    name."""
    number: dict[str, int] = {}
    held = [number.setdefault(wire, len(number)) for names in wires for wire in names]
    held_first = np.cumsum([0, *map(len, wires)]).astype(np.int64)
    return held_first, np.array(held, dtype=np.int64), np.zeros(len(number))
