"""The event kernel: simulates a graph whose nodes use wires, first come, first served."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from ..kernels import kernel
from ..model.ops import FloatArray, IntArray


class Wires(NamedTuple):
    """The wires that each of N nodes occupies, as arrays for a kernel.

    ``number``: the numbers of the wires of node 0, of node 1, and so on. ``first``: (N + 1,), where
    each node's wires begin in ``number``. ``share``: for each entry of ``number``, the fraction of
    the node's duration for which it occupies the wire, if it uses its wires one after the other.
    ``free``: zeros, one per wire; the kernel stores here the time from which a wire is free.
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
        """The wires of ``bare`` nodes that have none, followed by nodes that can have some.

        The i-th of the latter nodes has the wires ``names[i]``, which it occupies for the fractions
        ``shares[i]``; with ``which``, it has ``names[which[i]]`` and ``shares[which[i]]``. Shares
        default to 1.
        """
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
        """All pairs of nodes that occupy a wire one directly after the other.

        It is assumed that nodes use each wire in the order of their numbers. Returns two arrays of
        equal length: the earlier and the later node of each pair.
        """
        node = np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))
        by_wire = np.argsort(self.number, kind="stable")
        same = np.diff(self.number[by_wire]) == 0
        return node[by_wire[:-1][same]], node[by_wire[1:][same]]


@kernel
def first_come(  # noqa: PLR0917, C901
    first: IntArray,  # (N + 1,) where each node's edges begin
    to: IntArray,  # (E,) target of each edge; N + n is node n of the next round
    delay: FloatArray,  # (E,)
    missing: IntArray,  # (rounds * N,) edges into each node; out: those from stuck nodes
    duration: FloatArray,  # (N,)
    wire_first: IntArray,  # this and the next three arrays are the fields of :class:`Wires`
    wires: IntArray,
    share: FloatArray,
    free: FloatArray,
    at_once: bool,
    start: FloatArray,  # (rounds * N,) out
    end: FloatArray,  # (rounds * N,) zeros in, end times out
) -> IntArray:
    """Compute start and end of all nodes in several rounds (iterations) of a graph with N nodes.

    Returns the numbers of the nodes that can start, in the order in which they start on their last
    wire; node n of round k (from 0) has the number k N + n. The number of rounds follows from the
    length of ``missing``. A node is ready when all its predecessors have ended and the delays of
    the edges have passed. Each wire has a queue that nodes join in the order in which they become
    ready. Of nodes that become ready at the same time, the one with the lowest number is first.
    Times that differ by less than 1e-9 of the sum of all durations count as the same, as otherwise
    rounding errors would decide between symmetrical messages.

    ``at_once``: whether a node occupies all its wires from its start to its end, and starts when
    all of them are free. Otherwise it passes its wires one after the other: it joins the queue of a
    wire when it starts on the previous one, occupies each wire for a share of its duration, and
    ends when it has left all of them.
    """
    nodes, total = duration.shape[0], missing.shape[0]
    order = np.empty(total, dtype=np.int64)
    came = np.zeros(total)  # time when each node joined its current queue
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
