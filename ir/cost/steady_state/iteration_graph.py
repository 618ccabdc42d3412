"""One iteration of a schedule as a graph that can be repeated; see :mod:`.steady_state`.

The nodes, in order:

- a gate per rank: the moment when the rank begins the iteration;
- the ops, rank after rank;
- with links, a notice per message: its receiver has a buffer for it;
- the messages: activations and their gradients between ranks, then the transfers as listed;
- an end per rank: all its ops are done, all messages to it have arrived, and all messages from it
  are ready;
- the all-reduces of replicated stages, and the averages over replicas of the pipeline that begin at
  the end of their ranks;
- the averages over replicas that begin at the end of an op, before the end of their rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from ...model.links import Pair
from ...model.ops import FloatArray, IntArray
from ...model.profile import Profile
from ...model.schedule import Schedule, TransferKind
from ...model.transfers import holders, size
from ..dependency_graph import (
    EdgeKind,
    Edges,
    MessageTable,
    ScheduleGraph,
    Successors,
    edges_of,
    joined,
    undelayed,
)
from ..event_kernels import Wires, first_come
from ..gradient_averaging import Due, due


class AllReduce(NamedTuple):
    """An all-reduce over ``ranks``, ascending; its duration in ms, and the names of its wires."""

    ranks: tuple[int, ...]
    duration: float
    wires: tuple[str, ...]


def all_reduces(schedule: Schedule) -> list[AllReduce]:
    """The ring all-reduces at the end of an iteration, one per replicated stage, in stage order.

    Each of them sums the stage's gradients over the stage's ranks. With h ranks, there are
    2 (h - 1) steps, in each of which every rank sends 1 / h of the gradient to the next rank
    (Patarasuk and Yuan, 2009). All wires between these ranks are occupied until the all-reduce
    ends.
    """
    profile = schedule.problem.profile
    return [
        _all_reduce(profile, ranks, size(profile, TransferKind.GRADIENT, stage))
        for stage, ranks in enumerate(holders(schedule))
        if len(ranks) > 1
    ]


def _all_reduce(profile: Profile, ranks: tuple[int, ...], bytes_each: float) -> AllReduce:
    hops = list(zip(ranks, (*ranks[1:], ranks[0]), strict=True))
    part = bytes_each / len(ranks)
    delays = profile.delays(None) if profile.links is None else profile.link_delays(part)
    step = max(float(delays[hop]) for hop in hops)
    busy: dict[str, float] = {}
    for hop, wires in zip(hops, profile.wires(hops), strict=True):
        for wire in wires:  # hops that share a wire use it one after the other
            busy[wire] = busy.get(wire, 0.0) + float(delays[hop])
    return AllReduce(ranks, 2 * (len(ranks) - 1) * max(step, *busy.values(), 0.0), tuple(busy))


@dataclass(frozen=True, slots=True, eq=False)
class IterationGraph:
    """The graph of one iteration with N nodes.

    ``ranks``: the number of ranks, P; their gates are the first nodes. ``ops``, ``transfers``: the
    ranges of the numbers of these nodes. ``successors``: the edges from the nodes, where the target
    N + n is node n of the next iteration. ``within``, ``across``: the number of edges into each
    node from the same and from the previous iteration, (N,). ``duration``: the duration of each
    node, in ms, (N,). ``wires``: the wires that each node occupies.
    """

    ranks: int
    ops: slice
    transfers: slice
    successors: Successors
    within: IntArray
    across: IntArray
    duration: FloatArray
    wires: Wires

    @classmethod
    def of(cls, schedule: Schedule, routes: MessageTable | None = None) -> IterationGraph:
        """The graph of ``schedule``.

        ``routes``: a table of transfers that replaces the schedule's own. Raises
        InvalidScheduleError if a transfer is out of range or an op's input is never computed.
        """
        graph, profile = ScheduleGraph.of(schedule, routes), schedule.problem.profile
        ranks, ops = profile.ranks, schedule.num_ops
        ways, (sums, early) = _ways(graph), _reductions(schedule)
        messages = ways.shape[1]
        notices = messages if profile.links else 0
        at = _Places(ranks, ops, notices, messages, ranks, len(sums), len(early))
        edges = [
            *_of_messages(graph, at, ways),
            *_between_gates(graph, at, ways),
            _to_next_gates(at, [one.ranks for one in sums]),
            *_averaged(graph, at, early),
        ]
        successors = Successors.of(graph.paired(edges, ranks, 2 * at.nodes), 2 * at.nodes)
        last = [()] * ranks + [one.wires for one in sums] + list(map(_beside, early))
        duration = [
            np.zeros(ranks),
            graph.duration[:ops],
            np.zeros(notices),
            graph.edges[EdgeKind.ACTIVATION][2],
            graph.duration[ops:],
            np.zeros(ranks),
            np.array([one.duration for one in sums]),
            np.array([one.duration for one in early]),
        ]
        return cls(
            ranks,
            slice(ranks, ranks + ops),
            slice(int(at.ends[0]) - len(schedule.transfers), int(at.ends[0])),
            successors,
            within=successors.missing[: at.nodes],
            across=successors.missing[at.nodes :],
            duration=np.concatenate(duration),
            wires=_wires(profile, ranks + ops, np.hstack([ways[::-1, :notices], ways]), last),
        )

    def play(self, iterations: int) -> tuple[FloatArray, FloatArray, FloatArray] | None:
        """Simulate ``iterations`` repetitions of the graph.

        Returns the start and the end of all nodes, (iterations, N) each, and the time when each
        rank begins the iteration after the last one, (P,), all in ms. Returns None if nodes wait
        for each other.
        """
        nodes = len(self.duration)
        missing = np.tile(self.within + self.across, iterations + 1)
        missing[:nodes] = self.within
        missing = missing[: iterations * nodes + self.ranks]
        start, end = np.zeros((2, len(missing)))
        edges = self.successors._replace(missing=missing)
        wires = self.wires._replace(free=np.zeros_like(self.wires.free))
        if len(first_come(*edges, self.duration, *wires, False, start, end)) < len(missing):
            return None
        each, played = (iterations, nodes), iterations * nodes
        return start[:played].reshape(each), end[:played].reshape(each), start[played:]


class _Places:
    """The numbers of an iteration's nodes, one array for each kind (see the module's list).

    ``counts``: the number of nodes of each kind. ``told``: whether there are nodes for notices. If
    not, ``notices`` is ``messages``, as messages then wait for what notices would wait for.
    """

    def __init__(self, *counts: int) -> None:
        bounds = np.cumsum([0, *counts]).tolist()
        pieces = [np.arange(*ends) for ends in pairwise(bounds)]
        self.gates, self.ops, notices, self.messages, self.ends, self.sums, self.averages = pieces
        self.told = len(notices) > 0
        self.notices = notices if self.told else self.messages
        self.nodes = bounds[-1]


def _ways(graph: ScheduleGraph) -> IntArray:
    """The source rank and the target rank of each of n messages, (2, n)."""
    made, used, _ = graph.edges[EdgeKind.ACTIVATION]
    source = np.concatenate([graph.ranks[made], graph.routes.source])
    target = np.concatenate([graph.ranks[used], graph.routes.target])
    return np.stack([source, target])


def _wires(profile: Profile, bare: int, ways: IntArray, last: Sequence[tuple[str, ...]]) -> Wires:
    """The wires of all nodes: first ``bare`` nodes without wires, then notices and messages, then
    others.

    ``ways``: source and target rank of each notice and message, (2, n). ``last``: the names of the
    wires of each of the other nodes.
    """
    codes, which = np.unique(ways[0] * profile.ranks + ways[1], return_inverse=True)
    between: list[Pair] = [divmod(code, profile.ranks) for code in codes.tolist()]
    names, shares = profile.wires(between), profile.wire_shares(between)
    which = np.concatenate([which, len(between) + np.arange(len(last))])
    whole = [(1.0,) * len(wires) for wires in last]
    return Wires.of(bare, [*names, *last], [*shares, *whole], which)


def _reductions(schedule: Schedule) -> tuple[list[AllReduce], list[Due]]:
    """The all-reduces of an iteration and the averages over replicas, as two lists.

    The first list contains all that begin at the end of their ranks; an average among them is an
    all-reduce with a single rank. The second list contains the averages that begin at the end of an
    op.
    """
    averaged = due(schedule)
    late = [
        AllReduce((one.rank,), one.duration, _beside(one)) for one in averaged if one.last is None
    ]
    return all_reduces(schedule) + late, [one for one in averaged if one.last is not None]


def _of_messages(graph: ScheduleGraph, at: _Places, ways: IntArray) -> list[Edges]:
    """The edges of the schedule, where an edge between ranks leads through the node of its message.

    A message leaves only when its source has begun the iteration, and its target has begun it and
    given notice. Every node that a message waits for also has an edge to the end node of the
    message's source rank: when a rank ends, all messages from it are ready, but they may still wait
    for wires.
    """
    made, used, _ = graph.edges[EdgeKind.ACTIVATION]
    count = len(made)
    place = np.concatenate([at.ops, at.messages[count:]])
    room = np.concatenate([at.ops, at.notices[count:]])
    source, target = ways
    edges = [
        (place[origin], (room if reason is EdgeKind.ROOM else place)[to], delay)
        for reason, (origin, to, delay) in graph.edges.items()
        if reason is not EdgeKind.ACTIVATION
    ]
    edges += [
        undelayed(place[made], at.messages[:count]),
        undelayed(at.messages[:count], place[used]),
        undelayed(at.gates[source], at.messages),
        undelayed(at.gates[target], at.notices),
    ]
    if at.told:
        edges.append(undelayed(at.notices, at.messages))
    origin, to, _ = joined(edges)
    sent = np.isin(to, at.messages)
    sender = source[np.searchsorted(at.messages, to[sent])]
    return [*edges, undelayed(origin[sent], at.ends[sender])]


def _between_gates(graph: ScheduleGraph, at: _Places, ways: IntArray) -> list[Edges]:
    """Edges from each rank's gate to its first op and its end, and to its end from its last nodes.

    The last nodes of a rank are its last op and all messages to it.
    """
    offsets = graph.offsets
    used = np.flatnonzero(np.diff(offsets))
    return [
        undelayed(at.gates, at.ends),
        undelayed(at.gates[used], at.ops[offsets[:-1][used]]),
        undelayed(at.ops[offsets[1:][used] - 1], at.ends[used]),
        undelayed(at.messages, at.ends[ways[1]]),
    ]


def _beside(one: Due) -> tuple[str, ...]:
    """The name of the wire of an average, which all averages of its rank use, one at a time."""
    return (f"replicas of {one.rank}",)


def _averaged(graph: ScheduleGraph, at: _Places, early: Sequence[Due]) -> list[Edges]:
    """Edges from the last op of each stage in ``early`` to the stage's average, and from it on.

    The edges from the averages lead to the ends of their ranks.
    """
    last = [int(graph.offsets[one.rank]) + one.last for one in early if one.last is not None]
    ends = np.array([one.rank for one in early], dtype=np.int64)
    return [
        undelayed(at.ops[np.array(last, dtype=np.int64)], at.averages),
        undelayed(at.averages, at.ends[ends]),
    ]


def _to_next_gates(at: _Places, sums: Sequence[Sequence[int]]) -> Edges:
    """Edges from each rank's end through its all-reduces to its gate of the next iteration.

    A rank runs its all-reduces one after the other. ``sums``: the ranks of each all-reduce.
    """
    pairs: list[Pair] = []
    for rank, end in enumerate(at.ends.tolist()):
        own = [int(at.sums[k]) for k, members in enumerate(sums) if rank in members]
        pairs += pairwise([end, *own, at.nodes + int(at.gates[rank])])
    return edges_of(pairs)
