"""What waits for what: the edges between the ops and the transfers of a schedule.

Nodes are numbered: the ops from 0, rank after rank; the transfers as listed from some number on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

import numpy as np

from ..errors import InvalidScheduleError
from ..model.ops import (
    KIND_MASK,
    MICROBATCH_SHIFT,
    STAGE_MASK,
    STAGE_SHIFT,
    FloatArray,
    IntArray,
    Op,
    OpKind,
)
from ..model.schedule import Schedule
from ..model.transfers import previous, travel_delays
from ..units import counted
from .cost_tables import Costs
from .overlap import Edges, check_pairs, op_durations, together


def edges_of(pairs: Sequence[tuple[int, int]]) -> Edges:
    """Edges without delay."""
    array = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return array[:, 0], array[:, 1], np.zeros(len(array))


def waits(schedule: Schedule) -> tuple[IntArray, FloatArray, list[Edges]]:
    """Where each rank's ops begin (P + 1,), how long each op and then each transfer takes, and what
    waits for what, but for wires. Raises InvalidScheduleError as :func:`check_ranges` and
    :func:`inputs` do.
    """
    check_ranges(schedule)
    check_pairs(schedule)
    costs = Costs.of(schedule.problem)
    flat = np.concatenate(schedule.order).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum([len(ops) for ops in schedule.order])])
    durations = [
        op_durations(schedule, flat, costs),
        travel_delays(schedule.problem, schedule.transfers),
    ]
    edges = [
        chain(offsets, flat),
        *inputs(schedule, flat, costs),
        travel(schedule, offsets.tolist(), len(flat)),
    ]
    edges = together(schedule, edges, 0, len(flat) + len(schedule.transfers))
    return offsets, np.concatenate(durations), edges


def circle(schedule: Schedule) -> list[str]:
    """Ops and transfers of which each waits for the next, the last being the first; empty where the
    schedule can run. Raises InvalidScheduleError as :func:`waits` does."""
    offsets, _, edges = waits(schedule)
    sorter: TopologicalSorter[int] = TopologicalSorter()
    for origin, to, _ in edges:
        for before, after in zip(origin.tolist(), to.tolist(), strict=True):
            sorter.add(after, before)
    try:
        sorter.prepare()
    except CycleError as error:
        return [_named(schedule, offsets.tolist(), node) for node in reversed(error.args[1])]
    return []


def _named(schedule: Schedule, offsets: list[int], node: int) -> str:
    if node >= offsets[-1]:
        return f"transfers[{node - offsets[-1]}]"
    rank = bisect_right(offsets, node) - 1
    return f"{Op.unpack(int(schedule.order[rank][node - offsets[rank]]))} (rank {rank})"


def check_ranges(schedule: Schedule) -> None:
    """Raises InvalidScheduleError, naming each transfer that is out of range."""
    lengths = [len(ops) for ops in schedule.order]
    ranks, stages = len(lengths), schedule.problem.stages
    errors = []
    for i, t in enumerate(schedule.transfers):
        if t.source >= ranks or t.target >= ranks or t.stage >= stages:
            errors.append(
                f"transfers[{i}]: {t} is outside {counted(ranks, 'rank')} and "
                f"{counted(stages, 'stage')}"
            )
        elif (
            max(t.after, t.blocks or 0) > lengths[t.source]
            or max(t.room, t.before) > lengths[t.target]
        ):
            blocks = "" if t.blocks is None else f"blocks {t.blocks}, "
            errors.append(
                f"transfers[{i}]: {t}: after {t.after}, {blocks}room {t.room}, before {t.before} "
                "are not"
                f" within the {lengths[t.source]} and {lengths[t.target]} ops of its ranks"
            )
    if errors:
        raise InvalidScheduleError(errors)


def chain(offsets: IntArray, flat: IntArray) -> Edges:
    """Each op after the one before it on its rank; O's and L's as :mod:`.remat` says."""
    if bool(((flat & KIND_MASK) >= OpKind.O).any()):
        ops = [Op.unpack(op) for op in flat.tolist()]
        bounds = pairwise(offsets.tolist())
        return edges_of([pair for first, stop in bounds for pair in _lanes(ops, first, stop)])
    later = np.setdiff1d(np.arange(1, offsets[-1]), offsets)
    return later - 1, later, np.zeros(len(later))


def _lanes(ops: Sequence[Op], first: int, stop: int) -> Iterator[tuple[int, int]]:
    """The edges between one rank's ops, numbered from ``first``, with two lanes beside them."""
    last: dict[OpKind, int] = {}  # of each lane, the rank's own by its F's
    copied: dict[tuple[OpKind, int, int], int] = {}
    for node in range(first, stop):
        op = ops[node]
        s, j, kind = op.stage, op.microbatch, op.kind
        lane = kind if kind.copies else OpKind.F
        before = {lane} if kind is OpKind.O else {lane, OpKind.F, OpKind.O}
        yield from ((last[other], node) for other in sorted(before & last.keys()))
        causes = {OpKind.O: OpKind.F, OpKind.B: OpKind.L, OpKind.BW: OpKind.L}
        cause = (causes.get(kind, kind), s, j)
        if cause in copied and kind in causes:
            yield copied[cause], node
        last[lane] = copied[kind, s, j] = node


def inputs(schedule: Schedule, flat: IntArray, costs: Costs) -> list[Edges]:
    """Each op after the ops that make its inputs. Raises where such an op is missing."""
    stages, microbatches = costs.owner.shape
    kind, stage, microbatch = (
        flat & KIND_MASK,
        flat >> STAGE_SHIFT & STAGE_MASK,
        flat >> MICROBATCH_SHIFT,
    )
    makes = np.where(kind == OpKind.BW, OpKind.B, kind)
    node = np.full((len(OpKind), stages, microbatches), -1)
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


def travel(
    schedule: Schedule, offsets: list[int], number: int, notices: int | None = None
) -> Edges:
    """Each transfer after what it waits for, and each op after the transfers that it needs.

    ``number``: of the first transfer. ``notices``: of the first one's notice that there is room,
    where notices are nodes too.
    """
    notices = number if notices is None else notices
    transfers = schedule.transfers
    pairs: list[tuple[int, int]] = []
    for i, (t, earlier) in enumerate(zip(transfers, previous(transfers), strict=True)):
        if earlier is not None:
            pairs.append((number + earlier, number + i))
        if t.after > 0:
            pairs.append((offsets[t.source] + t.after - 1, number + i))
        if t.room > 0:
            pairs.append((offsets[t.target] + t.room - 1, notices + i))
        if offsets[t.target] + t.before < offsets[t.target + 1]:
            pairs.append((number + i, offsets[t.target] + t.before))
        if t.blocks is not None and offsets[t.source] + t.blocks < offsets[t.source + 1]:
            pairs.append((number + i, offsets[t.source] + t.blocks))
    return edges_of(pairs)


def by_origin(
    edges: Sequence[Edges], nodes: int
) -> tuple[IntArray, IntArray, FloatArray, IntArray]:
    """All edges by the node that they leave, and how many lead into each node.

    ``first``: (N + 1,), where each node's edges begin; then the node that each leads to, its
    delay, and (N,) the edges into each node.
    """
    origin, to, delay = (np.concatenate(parts) for parts in zip(*edges, strict=True))
    order = np.argsort(origin, kind="stable")
    first = np.concatenate([[0], np.cumsum(np.bincount(origin, minlength=nodes))])
    missing = np.bincount(to, minlength=nodes).astype(np.int64)
    return first.astype(np.int64), to[order], delay[order].astype(np.float64), missing
