"""One iteration of a schedule as a graph that can be played again and again: see :mod:`.replay`.

Nodes: a gate for each rank, through which it begins the iteration; the ops, rank after rank; the
activations and gradients that change ranks; the transfers as listed; of each rank, the moment when all
its ops are done and all its messages have arrived; the all-reduces, which come after that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from .all_reduce import all_reduces
from .costs import Costs
from .first_come import first_come, numbered
from .links import Pair
from .ops import FloatArray, IntArray
from .pairs import Edges, check_pairs, op_durations, together
from .schedule import Schedule
from .simulate import offsets_of
from .travel import travel_delays
from .waits import by_origin, chain, check_ranges, edges_of, inputs, travel
from .wires import kept, occupied


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
        messages = len(flat) + np.arange(len(pairs))
        travelling = len(flat) + len(pairs) - len(transfers)
        sums = all_reduces(schedule)
        nodes = ranks + len(flat) + len(pairs) + ranks + len(sums)
        sets_out = [
            *_by_message(far, messages),
            travel(schedule, offsets.tolist(), travelling),
            *_setting_out(messages, pairs, ranks),
        ]
        edges = [
            *sets_out,
            _sent(sets_out, messages, pairs, len(flat) + len(pairs)),
            chain(offsets, flat),
            near,
            *_between_gates(offsets, messages, pairs),
            _to_next_gates(ranks, [one.ranks for one in sums], nodes),
        ]
        edges = [(origin + ranks, to + ranks, delay) for origin, to, delay in edges]
        edges = together(schedule, edges, ranks, 2 * nodes)
        first, to, delay, missing = by_origin(edges, 2 * nodes)
        none: tuple[str, ...] = ()
        wires = [none] * (ranks + len(flat)) + occupied(problem.profile, pairs) + [none] * ranks
        return cls(
            ranks,
            slice(ranks, ranks + len(flat)),
            slice(ranks + travelling, ranks + travelling + len(transfers)),
            first,
            to,
            delay,
            within=missing[:nodes],
            across=missing[nodes:],
            duration=np.concatenate(
                [
                    np.zeros(ranks),
                    op_durations(schedule, flat, costs),
                    far[2],
                    travel_delays(problem, transfers),
                    np.zeros(ranks),
                    [one.duration for one in sums],
                ]
            ),
            wires=wires + [one.wires for one in sums],
            shares=np.concatenate(
                [*kept(problem.profile, pairs), *(np.ones(len(one.wires)) for one in sums), []]
            ),
        )

    def play(self, iterations: int) -> tuple[FloatArray, FloatArray] | None:
        """When all nodes start, (iterations, N), and when each rank begins the one after, (P,).

        None where they wait for each other.
        """
        nodes = len(self.duration)
        missing = np.tile(self.within + self.across, iterations + 1)
        missing[:nodes] = self.within
        missing = missing[: iterations * nodes + self.ranks]
        start = np.zeros(len(missing))
        order = first_come(
            self.first,
            self.to,
            self.delay,
            missing,
            self.duration,
            *numbered(self.wires),
            self.shares,
            start,
        )
        if len(order) < len(missing):
            return None
        return start[: iterations * nodes].reshape(iterations, nodes), start[iterations * nodes :]


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


def _between_gates(offsets: IntArray, messages: IntArray, pairs: Sequence[Pair]) -> list[Edges]:
    """Gates before a rank's first op; its end after its last op and after what it receives."""
    ranks = len(offsets) - 1
    gates, ends = np.arange(-ranks, 0), offsets[-1] + len(messages) + np.arange(ranks)
    used = np.flatnonzero(np.diff(offsets))
    target = np.array(pairs, dtype=np.int64).reshape(-1, 2)[:, 1]
    return [
        _free(gates, ends),
        _free(gates[used], offsets[:-1][used]),
        _free(offsets[1:][used] - 1, ends[used]),
        _free(messages, ends[target]),
    ]


def _setting_out(messages: IntArray, pairs: Sequence[Pair], ranks: int) -> list[Edges]:
    """What travels does so once both its ranks have begun."""
    ends = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return [_free(touched - ranks, messages) for touched in ends]


def _sent(edges: Sequence[Edges], messages: IntArray, pairs: Sequence[Pair], ends: int) -> Edges:
    """A rank's end after all that its messages wait for, wires aside; ``ends``: the first rank's."""
    origin, to, _ = (np.concatenate(parts) for parts in zip(*edges, strict=True))
    travels = np.isin(to, messages)
    source = np.array(pairs, dtype=np.int64).reshape(-1, 2)[:, 0]
    return _free(origin[travels], ends + source[np.searchsorted(messages, to[travels])])


def _to_next_gates(ranks: int, sums: Sequence[Sequence[int]], nodes: int) -> Edges:
    """From each rank's end by its all-reduces, one after the other, to its next gate."""
    pairs: list[Pair] = []
    first = nodes - ranks - len(sums)  # of all-reduces
    for rank in range(ranks):
        own = [first + k for k, members in enumerate(sums) if rank in members]
        pairs += pairwise([first - ranks + rank, *own, nodes - ranks + rank])
    return edges_of(pairs)
