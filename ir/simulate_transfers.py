"""The cost model where weights travel: the longest path through the ops and the transfers.

The contract's rules for ops hold as in :mod:`.simulate`. In addition an op waits for every
transfer to its rank whose ``before``, and from it whose ``blocks``, is at or before its position,
and a transfer starts as :class:`.schedule.Transfer` says and takes :func:`.travel.travel_delays`. A transfer occupies
nobody: links carry any number at once. Nothing here knows of turns or rings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numba
import numpy as np

from .costs import Costs
from .errors import InvalidScheduleError
from .ops import (
    KIND_MASK,
    MICROBATCH_SHIFT,
    STAGE_MASK,
    STAGE_SHIFT,
    FloatArray,
    IntArray,
    Op,
    OpKind,
)
from .schedule import Schedule, Timing
from .travel import previous, travel_delays

Edges: TypeAlias = tuple[IntArray, IntArray, FloatArray]  # from node, to node, delay


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
    problem, transfers = schedule.problem, schedule.transfers
    _check_ranges(schedule)
    costs = Costs.of(problem)
    flat = np.concatenate(schedule.order).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum([len(ops) for ops in schedule.order])])
    kind, stage = flat & KIND_MASK, flat >> STAGE_SHIFT & STAGE_MASK
    durations = np.concatenate([costs.durations[kind, stage], travel_delays(problem, transfers)])
    edges = [
        _chain(offsets),
        *_inputs(schedule, flat, costs),
        *_travel(schedule, offsets.tolist()),
    ]
    missing, start = np.zeros(len(durations), dtype=np.int64), np.zeros(len(durations))
    if longest_path(*_sorted(edges, missing), missing, durations, start) < len(durations):
        raise InvalidScheduleError(_stuck(schedule, missing, offsets.tolist()))
    end = start + durations
    ops, bounds = len(flat), offsets[1:-1]
    return Timing(
        tuple(np.split(start[:ops], bounds)),
        tuple(np.split(end[:ops], bounds)),
        _peaks(kind, stage, offsets, costs),
        np.stack([start[ops:], end[ops:]], axis=1),
    )


def _check_ranges(schedule: Schedule) -> None:
    lengths = [len(ops) for ops in schedule.order]
    ranks, stages = len(lengths), schedule.problem.stages
    errors = []
    for i, t in enumerate(schedule.transfers):
        if t.source >= ranks or t.target >= ranks or t.stage >= stages:
            errors.append(f"transfers[{i}]: {t} is outside {ranks} ranks and {stages} stages")
        elif (
            max(t.after, t.blocks or 0) > lengths[t.source]
            or max(t.room, t.before) > lengths[t.target]
        ):
            blocks = "" if t.blocks is None else f"blocks {t.blocks}, "
            errors.append(
                f"transfers[{i}]: {t}: after {t.after}, {blocks}room {t.room}, before {t.before} are not"
                f" within the {lengths[t.source]} and {lengths[t.target]} ops of its ranks"
            )
    if errors:
        raise InvalidScheduleError(errors)


def _chain(offsets: IntArray) -> Edges:
    """Each op after the one before it on its rank."""
    later = np.setdiff1d(np.arange(1, offsets[-1]), offsets)
    return later - 1, later, np.zeros(len(later))


def _inputs(schedule: Schedule, flat: IntArray, costs: Costs) -> list[Edges]:
    """Each op after the ops that make its inputs. Raises where such an op is missing."""
    stages, microbatches = costs.owner.shape
    kind, stage, microbatch = (
        flat & KIND_MASK,
        flat >> STAGE_SHIFT & STAGE_MASK,
        flat >> MICROBATCH_SHIFT,
    )
    makes = np.where(kind == OpKind.BW, OpKind.B, kind)
    node = np.full((3, stages, microbatches), -1)
    node[makes, stage, microbatch] = np.arange(len(flat))

    def edges(ops: IntArray, made: OpKind, shift: int, delays: FloatArray | None) -> Edges:
        s, j = stage[ops], microbatch[ops]
        lags = np.zeros(len(ops)) if delays is None else delays[s, j]
        return node[made, s + shift, j], ops, lags

    forward, backward = makes == OpKind.F, makes == OpKind.B
    result = [
        edges(np.flatnonzero(forward & (stage > 0)), OpKind.F, -1, costs.into_f),
        edges(np.flatnonzero(backward), OpKind.F, 0, None),
        edges(np.flatnonzero(backward & (stage < stages - 1)), OpKind.B, 1, costs.into_b),
        edges(np.flatnonzero(makes == OpKind.W), OpKind.B, 0, None),
    ]
    lost = np.concatenate([to[origin < 0] for origin, to, _ in result])
    if len(lost):
        names = [str(Op.unpack(op)) for op in flat[np.sort(lost)].tolist()]
        raise InvalidScheduleError(
            [f"{name} can never start: its input is never made" for name in names]
        )
    return result


def _travel(schedule: Schedule, offsets: list[int]) -> list[Edges]:
    """Each transfer after what it waits for, and each op after the transfers that it needs."""
    transfers, ops = schedule.transfers, offsets[-1]
    pairs = []
    for i, (t, earlier) in enumerate(zip(transfers, previous(transfers), strict=True)):
        if earlier is not None:
            pairs.append((ops + earlier, ops + i))
        if t.after > 0:
            pairs.append((offsets[t.source] + t.after - 1, ops + i))
        if t.room > 0:
            pairs.append((offsets[t.target] + t.room - 1, ops + i))
        if offsets[t.target] + t.before < offsets[t.target + 1]:
            pairs.append((ops + i, offsets[t.target] + t.before))
        if t.blocks is not None and offsets[t.source] + t.blocks < offsets[t.source + 1]:
            pairs.append((ops + i, offsets[t.source] + t.blocks))
    array = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return [(array[:, 0], array[:, 1], np.zeros(len(array)))]


def _sorted(edges: Sequence[Edges], missing: IntArray) -> Edges:
    """All edges by the node that they leave; counts those into each node in ``missing``."""
    origin, to, delay = (np.concatenate(parts) for parts in zip(*edges, strict=True))
    missing += np.bincount(to, minlength=len(missing))
    by_origin = np.argsort(origin, kind="stable")
    first = np.concatenate([[0], np.cumsum(np.bincount(origin, minlength=len(missing)))])
    return first.astype(np.int64), to[by_origin], delay[by_origin].astype(np.float64)


def _stuck(schedule: Schedule, missing: IntArray, offsets: list[int]) -> list[str]:
    """The first op of each rank that can never start, and the transfers that it waits for."""
    lines = []  # never empty: transfers wait for each other in list order, so a cycle has an op
    waiting = [t for i, t in enumerate(schedule.transfers) if missing[offsets[-1] + i]]
    for rank, ops in enumerate(schedule.order):
        stuck = np.flatnonzero(missing[offsets[rank] : offsets[rank + 1]])
        if not len(stuck):
            continue
        at = int(stuck[0])
        needs = [
            str(t) for t in waiting if (rank, at) in ((t.target, t.before), (t.source, t.blocks))
        ]
        why = f"waits for {', '.join(needs)}" if needs else "its input never comes"
        lines.append(f"rank {rank} can never start {Op.unpack(int(ops[at]))} (its op {at}): {why}")
    return lines


def _peaks(kind: IntArray, stage: IntArray, offsets: IntArray, costs: Costs) -> tuple[float, ...]:
    change = np.stack([costs.m_b, costs.m_w - costs.m_b, -costs.m_w, -costs.m_b])[kind, stage]
    parts = np.split(change, offsets[1:-1])
    return tuple(float(np.max(np.cumsum(part), initial=0.0)) for part in parts)
