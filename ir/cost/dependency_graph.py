"""The dependency graph of a schedule: which ops and transfers wait for which, and why.

Nodes are numbers: first the ops, rank after rank, then the transfers in the order of the schedule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from ..errors import InvalidScheduleError
from ..model.ops import KIND_MASK, FloatArray, IntArray, Op, OpKind, fields_of, offsets_of
from ..model.schedule import Schedule, Transfer, once
from ..model.transfers import earlier_ones, transfer_delays
from ..units import counted
from .cost_tables import Costs
from .overlap import check_pairs, op_durations, pair_starts

Edges: TypeAlias = tuple[IntArray, IntArray, FloatArray]  # from node, to node, delay in ms; (E,)

NEVER = 2**62


class EdgeKind(Enum):
    """The reason why a node waits for another one. In the texts, "it" is the node waited for."""

    ORDER = "it comes before it on the rank, or among its copies to or from the host"
    INPUT = "it makes its input, on the same rank"
    ACTIVATION = "it makes its input, on another rank"
    EARLIER = "it brings the copy of the weights or the gradient that goes on"
    AFTER = "the transfer leaves after this op of its source"
    ROOM = "the transfer has a buffer after this op of its target"
    BEFORE = "the op of its target needs the transfer"
    BLOCKS = "the op of its source waits until the transfer has left"


def edges_of(pairs: Sequence[tuple[int, int]]) -> Edges:
    """The edges without delay for ``pairs`` of nodes (origin, target)."""
    origin, to = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return undelayed(origin, to)


def undelayed(origin: IntArray, to: IntArray) -> Edges:
    return origin, to, np.zeros(len(origin))


def joined(edges: Sequence[Edges]) -> Edges:
    origin, to, delay = (np.concatenate(parts) for parts in zip(*edges, strict=True))
    return origin, to, delay


def _where(which: npt.NDArray[np.bool_], edges: Edges) -> Edges:
    origin, to, delay = edges
    return origin[which], to[which], delay[which]


class MessageTable(NamedTuple):
    """A table of n messages, with the fields of a Transfer that cause waits, (n,) each.

    The fields are described in :class:`..model.schedule.Transfer`. ``blocks`` is :data:`NEVER` for
    a message that blocks no op, where the field of the transfer is None.
    """

    source: IntArray
    target: IntArray
    after: IntArray
    room: IntArray
    before: IntArray
    blocks: IntArray

    @classmethod
    def of(cls, rows: Sequence[tuple[int, int, int, int, int, int | None]]) -> MessageTable:
        """The table of messages; ``rows``: the fields of each message, as ordered in the class.

        Raises InvalidScheduleError if a number is too large for a float.
        """
        try:
            table = np.array(rows, dtype=np.float64).reshape(-1, 6)  # nan where blocks is None
        except OverflowError:
            raise InvalidScheduleError(["transfers: a number is beyond any op"]) from None
        return cls(*np.nan_to_num(table, nan=NEVER).clip(max=NEVER).astype(np.int64).T)

    @classmethod
    def of_transfers(cls, transfers: Sequence[Transfer]) -> MessageTable:
        """The table of ``transfers``, with one row per transfer."""
        return cls.of(
            [(t.source, t.target, t.after, t.room, t.before, t.blocks) for t in transfers]
        )

    def edges(
        self, offsets: IntArray, leaves: IntArray, arrives: IntArray
    ) -> dict[EdgeKind, Edges]:
        """The edges between ops and messages, by kind of edge.

        ``leaves`` and ``arrives``: the nodes of the messages' departures and arrivals, (n,) each.
        ``offsets``: the node of each rank's first op, then the number of all ops, (P + 1,).
        """
        here, there, count = offsets[self.source], offsets[self.target], np.diff(offsets)
        after, room = np.flatnonzero(self.after > 0), np.flatnonzero(self.room > 0)
        before = np.flatnonzero(self.before < count[self.target])
        blocks = np.flatnonzero(self.blocks < count[self.source])
        return {
            EdgeKind.AFTER: undelayed((here + self.after - 1)[after], leaves[after]),
            EdgeKind.ROOM: undelayed((there + self.room - 1)[room], leaves[room]),
            EdgeKind.BEFORE: undelayed(arrives[before], (there + self.before)[before]),
            EdgeKind.BLOCKS: undelayed(arrives[blocks], here[blocks] + self.blocks[blocks]),
        }


class Successors(NamedTuple):
    """The edges of a graph with N nodes and E edges, sorted by origin, for kernels.

    ``first``: (N + 1,), the index of each node's first outgoing edge, then E. ``to``, ``delay``:
    target and delay (ms) of each edge, (E,). ``missing``: (N,), the number of edges into each node.
    """

    first: IntArray
    to: IntArray
    delay: FloatArray
    missing: IntArray

    @classmethod
    def of(cls, edges: Sequence[Edges], nodes: int) -> Successors:
        origin, to, delay = joined(edges)
        order = np.argsort(origin, kind="stable")
        first = np.concatenate([[0], np.cumsum(np.bincount(origin, minlength=nodes))])
        missing = np.bincount(to, minlength=nodes).astype(np.int64)
        return cls(first.astype(np.int64), to[order], delay[order].astype(np.float64), missing)


@dataclass(frozen=True, slots=True, eq=False)
class ScheduleGraph:
    """The nodes and edges of a schedule with P ranks.

    ``offsets``: the node of each rank's first op, then the number of all ops, (P + 1,). ``ranks``:
    the rank of each op. ``duration``: the duration of each op, then of each transfer, in ms, (N,).
    ``routes``: the table of transfers. ``edges``: the edges by kind, without those that follow from
    pairs (:meth:`paired`) and wires.
    """

    schedule: Schedule
    offsets: IntArray
    ranks: IntArray
    duration: FloatArray
    routes: MessageTable
    edges: dict[EdgeKind, Edges]

    @classmethod
    def of(cls, schedule: Schedule, routes: MessageTable | None = None) -> ScheduleGraph:
        """The graph of ``schedule``.

        ``routes``: a table of transfers that replaces the schedule's own. Raises
        InvalidScheduleError if a transfer is out of range, a pair is not an F and a BW, or the
        input of an op is never computed.
        """
        transfers = schedule.transfers
        routes = once(transfers, MessageTable.of_transfers) if routes is None else routes
        _check_ranges(schedule, routes)
        check_pairs(schedule)
        costs, offsets = Costs.of(schedule.problem), offsets_of(schedule.order)
        ops = np.concatenate(schedule.order).astype(np.int64)
        nodes = len(ops) + np.arange(len(transfers))
        ranks = np.repeat(np.arange(len(schedule.order)), np.diff(offsets))
        inputs = _inputs(ops, costs)
        far = ranks[inputs[0]] != ranks[inputs[1]]
        earlier = once(transfers, earlier_ones)
        later = np.flatnonzero(earlier >= 0)
        return cls(
            schedule,
            offsets,
            ranks,
            np.concatenate(
                [op_durations(schedule, ops, costs), transfer_delays(schedule.problem, transfers)]
            ),
            routes,
            {
                EdgeKind.ORDER: _in_order(offsets, ops),
                EdgeKind.INPUT: _where(~far, inputs),
                EdgeKind.ACTIVATION: _where(far, inputs),
                EdgeKind.EARLIER: undelayed(nodes[earlier[later]], nodes[later]),
                **routes.edges(offsets, nodes, nodes),
            },
        )

    @property
    def all_edges(self) -> list[Edges]:
        """All edges, including those that follow from pairs, but not those that wires cause."""
        return self.paired(list(self.edges.values()), 0, len(self.duration))

    @property
    def successors(self) -> Successors:
        return Successors.of(self.all_edges, len(self.duration))

    def paired(self, edges: Sequence[Edges], first_op: int, nodes: int) -> list[Edges]:
        """Return ``edges`` changed so that both ops of a pair wait for all nodes that either needs.

        The ops of a pair then do not wait for each other. ``first_op``: the node of the first op.
        ``nodes``: a number above the targets of all edges.
        """
        begin, twin = pair_starts(self.schedule) + first_op, np.arange(nodes)
        twin[begin], twin[begin + 1] = begin + 1, begin
        origin, to, delay = joined(edges)
        other = twin[to]
        keep = origin != other
        both = keep & (other != to)
        return [(origin[keep], to[keep], delay[keep]), (origin[both], other[both], delay[both])]


def _check_ranges(schedule: Schedule, routes: MessageTable) -> None:
    """Raise InvalidScheduleError if transfers have ranks, stages or positions that do not exist.

    The error names each of these transfers.
    """
    lengths = np.array([len(ops) for ops in schedule.order])
    ranks, stages = len(lengths), schedule.problem.stages
    outside = once(schedule.transfers, _stages) >= stages
    outside |= np.maximum(routes.source, routes.target) >= ranks
    blocks = np.where(routes.blocks == NEVER, 0, routes.blocks)
    on_source, on_target = (lengths[np.minimum(at, ranks - 1)] for at in routes[:2])
    beyond = np.maximum(routes.after, blocks) > on_source
    beyond |= np.maximum(routes.room, routes.before) > on_target
    errors = []
    for i in np.flatnonzero(outside | beyond).tolist():
        t = schedule.transfers[i]
        if outside[i]:
            errors.append(
                f"transfers[{i}]: {t} is outside {counted(ranks, 'rank')} and "
                f"{counted(stages, 'stage')}"
            )
            continue
        blocked = "" if t.blocks is None else f"blocks {t.blocks}, "
        errors.append(
            f"transfers[{i}]: {t}: after {t.after}, {blocked}room {t.room}, before {t.before} are "
            f"not within the {on_source[i]} and {on_target[i]} ops of its ranks"
        )
    if errors:
        raise InvalidScheduleError(errors)


def _stages(transfers: Sequence[Transfer]) -> FloatArray:
    """The stage of each transfer, (T,), as floats: a file may contain numbers beyond 64 bits."""
    return np.array([t.stage for t in transfers], dtype=np.float64)


def _in_order(offsets: IntArray, flat: IntArray) -> Edges:
    """Edges from each op to the next op of its rank; edges of O and L follow :mod:`.remat`.

    ``flat``: all ranks' packed ops; ``offsets``: where the ops of each rank begin in it, (P + 1,).
    """
    if bool(((flat & KIND_MASK) >= OpKind.O).any()):
        ops = [Op.unpack(op) for op in flat.tolist()]
        bounds = pairwise(offsets.tolist())
        return edges_of([pair for first, stop in bounds for pair in _with_copies(ops, first, stop)])
    later = np.setdiff1d(np.arange(1, offsets[-1]), offsets)
    return undelayed(later - 1, later)


def _with_copies(ops: Sequence[Op], first: int, stop: int) -> Iterator[tuple[int, int]]:
    """Yield the edges of :func:`_in_order`, as (origin, target), for one rank with O and L ops.

    The ops of the rank are the nodes ``first`` to ``stop`` - 1.
    """
    last: dict[OpKind, int] = {}  # nodes of the last O, the last L and, as F, the last other op
    copied: dict[tuple[OpKind, int, int], int] = {}
    for node in range(first, stop):
        op = ops[node]
        s, j, kind = op.stage, op.microbatch, op.kind
        own = kind if kind.copies else OpKind.F
        before = {own} if kind is OpKind.O else {own, OpKind.F, OpKind.O}
        yield from ((last[other], node) for other in sorted(before & last.keys()))
        causes = {OpKind.O: OpKind.F, OpKind.B: OpKind.L, OpKind.BW: OpKind.L}
        cause = (causes.get(kind, kind), s, j)
        if cause in copied and kind in causes:
            yield copied[cause], node
        last[own] = copied[kind, s, j] = node


def _inputs(flat: IntArray, costs: Costs) -> Edges:
    """Edges to each op from the ops that compute its inputs, with the delay of the message, if any.

    Raises InvalidScheduleError if the schedule lacks an op that computes an input.
    """
    stages, microbatches = costs.owner.shape
    kind, stage, microbatch = fields_of(flat)
    makes = np.where(kind == OpKind.BW, OpKind.B, kind)
    node = np.full((len(OpKind), stages, microbatches), -1)
    node[makes, stage, microbatch] = np.arange(len(flat))

    def edges(ops: IntArray, made: OpKind, shift: int, delays: FloatArray | None) -> Edges:
        s, j = stage[ops], microbatch[ops]
        lags = np.zeros(len(ops)) if delays is None else delays[s, j]
        return node[made, s + shift, j], ops, lags

    forward, backward = makes == OpKind.F, makes == OpKind.B
    origin, to, delay = joined(
        [
            edges(np.flatnonzero(forward & (stage > 0)), OpKind.F, -1, costs.into_f),
            edges(np.flatnonzero(backward), OpKind.F, 0, None),
            edges(np.flatnonzero(backward & (stage < stages - 1)), OpKind.B, 1, costs.into_b),
            edges(np.flatnonzero(makes == OpKind.W), OpKind.B, 0, None),
        ]
    )
    names = [str(Op.unpack(op)) for op in flat[np.sort(to[origin < 0])].tolist()]
    if names:
        raise InvalidScheduleError(
            [f"{name} can never start: its input is never made" for name in names]
        )
    return origin, to, delay
