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

import numpy as np

from ...model.links import Pair
from ...model.ops import FloatArray, IntArray
from ...model.schedule import Schedule
from ...model.transfers import travel_delays
from ...model.wires import kept, occupied
from ..all_reduce import AllReduce, all_reduces
from ..cost_tables import Costs
from ..dependency_graph import by_origin, chain, check_ranges, edges_of, inputs, travel
from ..event_kernels import in_queues, numbered
from ..gradient_averaging import Due, due
from ..overlap import Edges, check_pairs, op_durations, together
from ..simulator import offsets_of


@dataclass(frozen=True, slots=True, eq=False)
class Iteration:
    """The graph; ``within`` and ``across`` count the edges into each node that come from the same
    iteration and from the one before. ``ops`` and ``transfers`` are the places of those nodes.
    ``shares``: for how much of its duration a node keeps each of its ``wires``, node after node.
    """

    ranks: int
    ops: slice
    transfers: slice
    first: IntArray
    to: IntArray
    delay: FloatArray
    within: IntArray
    across: IntArray
    duration: FloatArray
    wires: list[tuple[str, ...]]
    shares: FloatArray

    @classmethod
    def of(cls, schedule: Schedule) -> Iteration:
        """Raises InvalidScheduleError for a transfer out of range, an input that is never made."""
        check_ranges(schedule)
        check_pairs(schedule)
        problem, transfers, ranks = schedule.problem, schedule.transfers, schedule.problem.ranks
        costs, offsets = Costs.of(problem), offsets_of(schedule.order)
        flat = np.concatenate(schedule.order).astype(np.int64)
        near, far = _apart(inputs(schedule, flat, costs), offsets)
        pairs = _ends(far, offsets) + [(t.source, t.target) for t in transfers]
        back = [(target, source) for source, target in pairs] if problem.profile.links else []
        averaged = due(schedule)
        early = [one for one in averaged if one.last is not None]
        sums = all_reduces(schedule) + [
            AllReduce((one.rank,), one.duration, _beside(one))
            for one in averaged
            if one.last is None
        ]
        at = _Places(ranks, len(flat), len(back), len(pairs), len(sums), len(early))
        sets_out = [
            *_by_message(far, at.messages),
            travel(schedule, offsets.tolist(), *at.last(len(transfers))),
            *_setting_out(at, pairs),
        ]
        edges = [
            *sets_out,
            _sent(sets_out, at, pairs),
            chain(offsets, flat),
            near,
            *_between_gates(offsets, at, pairs),
            _to_next_gates(at, [one.ranks for one in sums]),
            *_averaged(at, offsets, early),
        ]
        edges = [(origin + ranks, to + ranks, delay) for origin, to, delay in edges]
        edges = together(schedule, edges, ranks, 2 * at.nodes)
        first, to, delay, missing = by_origin(edges, 2 * at.nodes)
        ways, none = [*back, *pairs], [()]
        return cls(
            ranks,
            slice(ranks, ranks + len(flat)),
            slice(ranks + int(at.ends[0]) - len(transfers), ranks + int(at.ends[0])),
            first,
            to,
            delay,
            within=missing[: at.nodes],
            across=missing[at.nodes :],
            duration=np.concatenate(
                [
                    np.zeros(ranks),
                    op_durations(schedule, flat, costs),
                    np.zeros(len(back)),
                    far[2],
                    travel_delays(problem, transfers),
                    np.zeros(ranks),
                    [one.duration for one in sums],
                    [one.duration for one in early],
                ]
            ),
            wires=[
                *none * (ranks + len(flat)),
                *occupied(problem.profile, ways),
                *none * ranks,
                *(one.wires for one in sums),
                *map(_beside, early),
            ],
            shares=np.concatenate(
                [
                    *kept(problem.profile, ways),
                    *(np.ones(len(one.wires)) for one in sums),
                    np.ones(len(early)),
                ]
            ),
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
        start, end = np.zeros(len(missing)), np.zeros(len(missing))
        done = in_queues(
            self.first,
            self.to,
            self.delay,
            missing,
            self.duration,
            *numbered(self.wires),
            self.shares,
            start,
            end,
        )
        if done < len(missing):
            return None
        each, played = (iterations, nodes), iterations * nodes
        return start[:played].reshape(each), end[:played].reshape(each), start[played:]


class _Places:
    """Where the nodes of an iteration are, as arrays; gates come before the ops, from -P on.

    ``notices`` are the messages themselves where no notices are nodes.
    """

    def __init__(  # noqa: PLR0917
        self, ranks: int, ops: int, notices: int, messages: int, sums: int, averages: int
    ) -> None:
        self.told = notices > 0
        self.gates = np.arange(-ranks, 0)
        self.messages = ops + notices + np.arange(messages)
        self.notices = ops + np.arange(notices) if self.told else self.messages
        self.ends = ops + notices + messages + np.arange(ranks)
        self.sums = self.ends[-1] + 1 + np.arange(sums)
        self.averages = self.ends[-1] + 1 + sums + np.arange(averages)
        self.nodes = ranks + ops + notices + messages + ranks + sums + averages

    def last(self, count: int) -> tuple[int, int]:
        """The first of the last ``count`` messages and of their notices, which stand right before
        all messages."""
        first = int(self.ends[0]) - count
        return first, first - len(self.messages) if self.told else first


def _apart(edges: Sequence[Edges], offsets: IntArray) -> tuple[Edges, Edges]:
    """The edges within ranks, and those from rank to rank."""
    origin, to, delay = (np.concatenate(parts) for parts in zip(*edges, strict=True))
    far = _rank(origin, offsets) != _rank(to, offsets)
    return (origin[~far], to[~far], delay[~far]), (origin[far], to[far], delay[far])


def _rank(ops: IntArray, offsets: IntArray) -> IntArray:
    ranks: IntArray = np.searchsorted(offsets, ops, side="right") - 1
    return ranks


def _ends(far: Edges, offsets: IntArray) -> list[Pair]:
    """From which rank to which."""
    source, target = (_rank(ops, offsets).tolist() for ops in far[:2])
    return list(zip(source, target, strict=True))


def _free(origin: IntArray, to: IntArray) -> Edges:
    return origin, to, np.zeros(len(origin))


def _by_message(far: Edges, messages: IntArray) -> list[Edges]:
    """Each edge from rank to rank by way of a message, which takes its delay."""
    origin, to, _ = far
    message = messages[: len(origin)]
    return [_free(origin, message), _free(message, to)]


def _between_gates(offsets: IntArray, at: _Places, pairs: Sequence[Pair]) -> list[Edges]:
    """Gates before a rank's first op; its end after its last op and after what it receives."""
    used = np.flatnonzero(np.diff(offsets))
    target = np.array(pairs, dtype=np.int64).reshape(-1, 2)[:, 1]
    return [
        _free(at.gates, at.ends),
        _free(at.gates[used], offsets[:-1][used]),
        _free(offsets[1:][used] - 1, at.ends[used]),
        _free(at.messages, at.ends[target]),
    ]


def _setting_out(at: _Places, pairs: Sequence[Pair]) -> list[Edges]:
    """What travels does so once its source has begun, and its target, which gives notice of
    that."""
    source, target = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    heard = [_free(at.notices, at.messages)] if at.told else []
    return [_free(at.gates[source], at.messages), _free(at.gates[target], at.notices), *heard]


def _sent(edges: Sequence[Edges], at: _Places, pairs: Sequence[Pair]) -> Edges:
    """A rank's end after all that its messages wait for, wires aside."""
    origin, to, _ = (np.concatenate(parts) for parts in zip(*edges, strict=True))
    travels = np.isin(to, at.messages)
    source = np.array(pairs, dtype=np.int64).reshape(-1, 2)[:, 0]
    return _free(origin[travels], at.ends[source[np.searchsorted(at.messages, to[travels])]])


def _beside(one: Due) -> tuple[str, ...]:
    """The link to the replicas, which carries one stage's gradient at a time."""
    return (f"replicas of {one.rank}",)


def _averaged(at: _Places, offsets: IntArray, early: Sequence[Due]) -> list[Edges]:
    """From a stage's last op by its average to the rank's end."""
    last = [int(offsets[one.rank]) + one.last for one in early if one.last is not None]
    ends = [at.ends[one.rank] for one in early]
    return [
        _free(np.array(last, dtype=np.int64), at.averages),
        _free(at.averages, np.array(ends, dtype=np.int64)),
    ]


def _to_next_gates(at: _Places, sums: Sequence[Sequence[int]]) -> Edges:
    """From each rank's end by its all-reduces, one after the other, to its next gate."""
    pairs: list[Pair] = []
    for rank, end in enumerate(at.ends.tolist()):
        own = [int(at.sums[k]) for k, members in enumerate(sums) if rank in members]
        pairs += pairwise([end, *own, at.nodes + int(at.gates[rank])])
    return edges_of(pairs)
