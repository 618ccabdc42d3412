"""The event kernel: first come, first served, on all wires at once or one after the other."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from ..kernels import kernel
from ..model.ops import FloatArray, IntArray


class Wires(NamedTuple):
    """Which wires each node occupies, for a kernel.

    ``first``: (N + 1,), where each node's wires begin in ``number``; ``share``: as long as that, of
    a node's duration, for how much it keeps each wire in turn; ``free``: zeros, one a wire.
    """

    first: IntArray
    number: IntArray
    share: FloatArray
    free: FloatArray

    @classmethod
    def of(
        cls,
        bare: int,
        names: Sequence[Sequence[str]] = (),
        shares: Sequence[Sequence[float]] | None = None,
        which: IntArray | None = None,
    ) -> Wires:
        """Wires for ``bare`` nodes that have none, then for nodes that have these: each the entry
        of its own, or that of its number in ``which``."""
        known: dict[str, int] = {}
        number = [known.setdefault(wire, len(known)) for wires in names for wire in wires]
        share = np.ones(len(number)) if shares is None else np.array([*chain(*shares)])
        counts = np.array([len(wires) for wires in names], dtype=np.int64)
        which = np.arange(len(names)) if which is None else which
        each, starts = counts[which], np.cumsum(counts) - counts
        ends = np.cumsum(each)
        at = np.arange(each.sum()) + np.repeat(starts[which] - ends + each, each)
        first = np.concatenate([np.zeros(bare + 1, dtype=np.int64), ends])
        return cls(first, np.array(number, dtype=np.int64)[at], share[at], np.zeros(len(known)))

    def turns(self) -> tuple[IntArray, IntArray]:
        """Each two nodes that come one right after the other over some wire, first and second."""
        node = np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))
        by_wire = np.argsort(self.number, kind="stable")
        same = np.diff(self.number[by_wire]) == 0
        return node[by_wire[:-1][same]], node[by_wire[1:][same]]


@kernel
def first_come(  # noqa: PLR0917, C901
    first: IntArray,  # (N + 1,) where each node's edges begin
    to: IntArray,  # (E,) node that each edge leads to; N + n is node n one round later
    delay: FloatArray,  # (E,)
    missing: IntArray,  # (rounds * N,) edges into each node; what is left of them afterwards
    duration: FloatArray,  # (N,)
    wire_first: IntArray,  # these four are :class:`Wires`
    wires: IntArray,
    share: FloatArray,
    free: FloatArray,
    at_once: bool,
    start: FloatArray,  # (rounds * N,) out
    end: FloatArray,  # (rounds * N,) zeros in, end times out
) -> IntArray:
    """Times all nodes, ``rounds`` times over; those that could be timed, in the order in which they
    come to their (last) wire's turn.

    A node is ready once all that leads to it has ended. Each wire has a queue, which nodes join in
    the order in which they become ready, the lower number first where they do so together: within
    1e-9 of a round's work, or it would be rounding errors that decide between symmetrical messages.
    ``at_once``: a node starts once all its wires are free and keeps them to its end. Else it passes
    them one after the other: it joins a wire's queue when it starts on the wire before, keeps it
    for its share of the time, and ends once it has left them all.
    """
    nodes, total = duration.shape[0], missing.shape[0]
    order = np.empty(total, dtype=np.int64)
    came = np.zeros(total)  # at the end of the queue that a node is in
    done = 0
    moment = max(1e-9 * duration.sum(), 1e-300)
    queue = [(0.0, node, 0) for node in range(total) if missing[node] == 0]
    heapq.heapify(queue)
    while len(queue) > 0:
        _, node, hop = heapq.heappop(queue)
        kind = node % nodes
        wire, last = wire_first[kind] + hop, wire_first[kind + 1]
        begin, takes = came[node], duration[kind]
        if at_once:
            for i in range(wire, last):
                begin = max(begin, free[wires[i]])
            for i in range(wire, last):
                free[wires[i]] = begin + takes
            wire = last
        elif wire < last:
            begin = max(begin, free[wires[wire]])
            takes *= share[wire]
            free[wires[wire]] = begin + takes
        if hop == 0:
            start[node] = begin
        end[node] = max(end[node], begin + takes)
        if wire + 1 < last:
            came[node] = begin
            heapq.heappush(queue, (np.rint(begin / moment), node, hop + 1))
            continue
        order[done] = node
        done += 1
        for edge in range(first[kind], first[kind + 1]):
            other = node - kind + to[edge]
            if other < total:
                came[other] = max(came[other], end[node] + delay[edge])
                missing[other] -= 1
                if missing[other] == 0:
                    heapq.heappush(queue, (np.rint(came[other] / moment), other, 0))
    return order[:done]
