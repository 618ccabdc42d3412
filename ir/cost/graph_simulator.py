"""The cost model where weights travel or ops run in pairs: the longest path through ops and
transfers.

The contract's rules for ops hold as in :mod:`.simulator`. In addition an op waits for every
transfer to its rank whose ``before``, and from it whose ``blocks``, is at or before its position,
and a transfer starts as :class:`..model.schedule.Transfer` says and takes
:func:`..model.transfers.travel_delays`. A transfer occupies no rank. Where the profile has links it
occupies the wires between its ranks, and those that share a wire go one after the other in the
order of the list. Nothing here knows of turns or rings.
"""

from __future__ import annotations

import numba
import numpy as np

from ..errors import InvalidScheduleError
from ..model.ops import FloatArray, IntArray, Op
from ..model.schedule import Schedule, Timing, Transfer
from ..model.wires import in_turn
from .dependency_graph import by_origin, edges_of, waits
from .remat import held, pulled


@numba.njit(cache=True, nogil=True)
def longest_path(  # noqa: PLR0917
    first: IntArray,  # (N + 1,) where each node's edges begin
    to: IntArray,  # (E,) node that each edge leads to, by the node it leaves
    delay: FloatArray,  # (E,)
    missing: IntArray,  # (N,) edges into each node; what is left of them afterwards
    duration: FloatArray,  # (N,)
    start: FloatArray,  # (N,) zeros in, start times out
) -> int:
    """Times every node at the earliest; how many could be timed (fewer than N: a cycle)."""
    nodes = missing.shape[0]
    queue = np.empty(nodes, dtype=np.int64)
    tail = 0
    for node in range(nodes):
        if missing[node] == 0:
            queue[tail] = node
            tail += 1
    head = 0
    while head < tail:
        node = queue[head]
        head += 1
        end = start[node] + duration[node]
        for edge in range(first[node], first[node + 1]):
            other = to[edge]
            start[other] = max(start[other], end + delay[edge])
            missing[other] -= 1
            if missing[other] == 0:
                queue[tail] = other
                tail += 1
    return tail


def simulate_transfers(schedule: Schedule) -> Timing:
    """The time of every op and every transfer of ``schedule``.

    Raises InvalidScheduleError, naming what can never start and where, where a transfer is out
    of range, an input is missing, or ops and transfers wait for each other.
    """
    if pulled(schedule.order):
        raise InvalidScheduleError(["R, O and L: expected none beside transfers or pairs"])
    offsets, durations, edges = waits(schedule)
    links = [(t.source, t.target) for t in schedule.transfers]
    ops, turns = schedule.num_ops, in_turn(schedule.problem.profile, links)
    edges.append(edges_of([(ops + earlier, ops + later) for earlier, later in turns]))
    first, to, delay, missing = by_origin(edges, len(durations))
    start = np.zeros(len(durations))
    if longest_path(first, to, delay, missing, durations, start) < len(durations):
        raise InvalidScheduleError(_stuck(schedule, missing, offsets.tolist(), turns))
    end, bounds = start + durations, offsets[1:-1]
    return Timing(
        tuple(np.split(start[:ops], bounds)),
        tuple(np.split(end[:ops], bounds)),
        peaks(schedule),
        np.stack([start[ops:], end[ops:]], axis=1),
    )


def _stuck(
    schedule: Schedule, missing: IntArray, offsets: list[int], turns: list[tuple[int, int]]
) -> list[str]:
    """The first op of each rank that can never start, and the transfers that it waits for."""
    lines = []  # never empty: transfers wait for each other in list order, so a cycle has an op
    held_up = missing[offsets[-1] :] > 0
    behind = {later: earlier for earlier, later in turns if held_up[earlier]}
    waiting = [(t, behind.get(i)) for i, t in enumerate(schedule.transfers) if held_up[i]]
    for rank, ops in enumerate(schedule.order):
        stuck = np.flatnonzero(missing[offsets[rank] : offsets[rank + 1]])
        if not len(stuck):
            continue
        at = int(stuck[0])
        needs = [
            _named(schedule, t, other)
            for t, other in waiting
            if (rank, at) in ((t.target, t.before), (t.source, t.blocks))
        ]
        why = f"waits for {', '.join(needs)}" if needs else "its input never comes"
        lines.append(f"rank {rank} can never start {Op.unpack(int(ops[at]))} (its op {at}): {why}")
    return lines


def _named(schedule: Schedule, transfer: Transfer, behind: int | None) -> str:
    if behind is None:
        return str(transfer)
    return f"{transfer} (listed after {schedule.transfers[behind]}, with which it shares a wire)"


def peaks(schedule: Schedule) -> tuple[float, ...]:
    """The most that each rank holds of M_B and M_W, shape (P,): its order alone decides it."""
    rows = held(schedule.problem, schedule.order)
    return tuple(float(np.max(row, initial=0.0)) for row in rows)
