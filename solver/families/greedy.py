"""A greedy list schedule of F's and BW's, with the times of the papers' figures.

An F takes 1 slot of time, a BW 2.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from typing import Any

from pipeloom.ir.model.ops import Op, OpKind

_SLOTS = {OpKind.F: 1, OpKind.BW: 2}


def greedy(
    waits: Mapping[Op, Sequence[Op]], rank: Mapping[Op, int], priority: Callable[[Op], Any]
) -> list[list[Op]]:
    """Return each rank's ops in the order in which a greedy simulation runs them.

    A rank that is free immediately runs the op with the lowest sort key among its ready ops.
    ``waits``: for each op, the ops that must end before it is ready; messages take no time.
    ``rank``: the rank of each op. ``priority``: a function that returns the sort key of an op.
    """
    missing = {op: len(before) for op, before in waits.items()}
    after: dict[Op, list[Op]] = defaultdict(list)
    for op, before in waits.items():
        for one in before:
            after[one].append(op)
    ready: list[list[tuple[Any, Op]]] = [[] for _ in range(max(rank.values()) + 1)]  # heaps
    order: list[list[Op]] = [[] for _ in ready]
    ends: list[tuple[int, int, Op]] = []  # (slot, rank, op), a heap
    idle, now, found = set(range(len(ready))), 0, [op for op, count in missing.items() if not count]
    while True:
        for op in found:
            heappush(ready[rank[op]], (priority(op), op))
        for here in [here for here in idle if ready[here]]:
            op = heappop(ready[here])[1]
            order[here].append(op)
            heappush(ends, (now + _SLOTS[op.kind], here, op))
            idle.remove(here)
        if not ends:
            return order
        now, found = ends[0][0], []
        while ends and ends[0][0] == now:
            _, here, ended = heappop(ends)
            idle.add(here)
            for op in after[ended]:
                missing[op] -= 1
                if not missing[op]:
                    found.append(op)


def input_of(op: Op, stages: int) -> tuple[Op, ...]:
    """Return the F or BW whose output ``op`` needs, as a tuple of one op.

    The tuple is empty if ``op`` is an F of stage 0. ``op``: an F or BW. ``stages``: the number of
    stages.
    """
    if op.kind is OpKind.F:
        return (Op(OpKind.F, op.stage - 1, op.microbatch),) if op.stage else ()
    if op.stage + 1 == stages:
        return (Op(OpKind.F, op.stage, op.microbatch),)
    return (Op(OpKind.BW, op.stage + 1, op.microbatch),)
