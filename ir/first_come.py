"""The event-driven kernel: what is ready first goes first, on every wire that it needs."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numba
import numpy as np

from .ops import FloatArray, IntArray


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
    share: FloatArray,  # as long as ``held``: of its duration, for how much a node keeps each wire
    start: FloatArray,  # (rounds * N,) zeros in, start times out
) -> IntArray:
    """Times all nodes, ``rounds`` times over; those that could be timed, in the order they start.

    A node is ready once all that leads to it has ended; it starts once it is ready and its wires
    are free, and keeps each for its share of the time. Nodes take their wires in the order in which they become
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
            free[held[i]] = begin + share[i] * duration[kind]
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


def numbered(wires: Sequence[Sequence[str]]) -> tuple[IntArray, IntArray, FloatArray]:
    """``held_first``, ``held`` and ``free`` of :func:`first_come` from each node's wires by name."""
    number: dict[str, int] = {}
    held = [number.setdefault(wire, len(number)) for names in wires for wire in names]
    held_first = np.cumsum([0, *map(len, wires)]).astype(np.int64)
    return held_first, np.array(held, dtype=np.int64), np.zeros(len(number))
