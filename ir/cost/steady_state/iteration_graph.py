"""One iteration of a schedule as a graph that can be played again and again: see
:mod:`.steady_state`.

Nodes: a gate for each rank, through which it begins the iteration; the ops, rank after rank; where
there are links, a notice for each message; the messages: activations and gradients that change
ranks, then transfers as listed; of each rank, the moment when all its ops are done and all its
messages have arrived; the all-reduces, which come after that, and the averages over replicas that
do; those that begin at an op's end, and come before it.
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
    """``ranks`` take part, ascending; ``duration`` in ms; ``wires`` by name."""

    ranks: tuple[int, ...]
    duration: float
    wires: tuple[str, ...]


def all_reduces(schedule: Schedule) -> list[AllReduce]:
    """Ring all-reduces at the end of an iteration, one a replicated stage, in their order, that sum
    its gradients over its ranks.

    With h ranks, each sends its gradient cut in h parts to the next one, a part at a time, in
    2 (h - 1) steps (Patarasuk and Yuan, 2009). The wires between them are occupied until it is
    over.
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
        for wire in wires:  # hops that share one take turns
            busy[wire] = busy.get(wire, 0.0) + float(delays[hop])
    return AllReduce(ranks, 2 * (len(ranks) - 1) * max(step, *busy.values(), 0.0), tuple(busy))


@dataclass(frozen=True, slots=True, eq=False)
class IterationGraph:
    """``successors``: node N + n is node n of the next iteration. ``within``, ``across``: the edges
    into each node from the same iteration and from the one before. ``ops`` and ``transfers`` are
    the places of those nodes.
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
        """``routes``: of the transfers, where they are not the schedule's. Raises
        InvalidScheduleError for a transfer out of range, an input that is never made."""
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
        """When all nodes start and end, (iterations, N), and when each rank begins the one after,
        (P,).

        None where they wait for each other.
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
    """Positions of an iteration's nodes; without notices ``notices`` are the messages."""

    def __init__(self, *counts: int) -> None:
        bounds = np.cumsum([0, *counts]).tolist()
        pieces = [np.arange(*ends) for ends in pairwise(bounds)]
        self.gates, self.ops, notices, self.messages, self.ends, self.sums, self.averages = pieces
        self.told = len(notices) > 0
        self.notices = notices if self.told else self.messages
        self.nodes = bounds[-1]


def _ways(graph: ScheduleGraph) -> IntArray:
    """From which rank to which each message goes, (2, n)."""
    made, used, _ = graph.edges[EdgeKind.ACTIVATION]
    source = np.concatenate([graph.ranks[made], graph.routes.source])
    target = np.concatenate([graph.ranks[used], graph.routes.target])
    return np.stack([source, target])


def _wires(profile: Profile, bare: int, ways: IntArray, last: Sequence[tuple[str, ...]]) -> Wires:
    """Wires of notices and messages that go ``ways``, then of the ``last`` nodes."""
    codes, which = np.unique(ways[0] * profile.ranks + ways[1], return_inverse=True)
    between: list[Pair] = [divmod(code, profile.ranks) for code in codes.tolist()]
    names, shares = profile.wires(between), profile.wire_shares(between)
    which = np.concatenate([which, len(between) + np.arange(len(last))])
    whole = [(1.0,) * len(wires) for wires in last]
    return Wires.of(bare, [*names, *last], [*shares, *whole], which)


def _reductions(schedule: Schedule) -> tuple[list[AllReduce], list[Due]]:
    """Reductions after all ops of their ranks, and averages that begin at an op's end."""
    averaged = due(schedule)
    late = [
        AllReduce((one.rank,), one.duration, _beside(one)) for one in averaged if one.last is None
    ]
    return all_reduces(schedule) + late, [one for one in averaged if one.last is not None]


def _of_messages(graph: ScheduleGraph, at: _Places, ways: IntArray) -> list[Edges]:
    """The schedule's own edges, each from rank to rank by way of a message, which takes its delay.

    A message leaves once its source has begun, and its target, which gives notice of that. A
    rank's end comes after all that its messages wait for, wires aside.
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
    """Gates before a rank's first op; its end after its last op and after what it receives."""
    offsets = graph.offsets
    used = np.flatnonzero(np.diff(offsets))
    return [
        undelayed(at.gates, at.ends),
        undelayed(at.gates[used], at.ops[offsets[:-1][used]]),
        undelayed(at.ops[offsets[1:][used] - 1], at.ends[used]),
        undelayed(at.messages, at.ends[ways[1]]),
    ]


def _beside(one: Due) -> tuple[str, ...]:
    """The link to the replicas, which carries one stage's gradient at a time."""
    return (f"replicas of {one.rank}",)


def _averaged(graph: ScheduleGraph, at: _Places, early: Sequence[Due]) -> list[Edges]:
    """From a stage's last op by its average to the rank's end."""
    last = [int(graph.offsets[one.rank]) + one.last for one in early if one.last is not None]
    ends = np.array([one.rank for one in early], dtype=np.int64)
    return [
        undelayed(at.ops[np.array(last, dtype=np.int64)], at.averages),
        undelayed(at.averages, at.ends[ends]),
    ]


def _to_next_gates(at: _Places, sums: Sequence[Sequence[int]]) -> Edges:
    """From each rank's end by its all-reduces, one after the other, to its next gate."""
    pairs: list[Pair] = []
    for rank, end in enumerate(at.ends.tolist()):
        own = [int(at.sums[k]) for k, members in enumerate(sums) if rank in members]
        pairs += pairwise([end, *own, at.nodes + int(at.gates[rank])])
    return edges_of(pairs)
