"""The proof that a program cannot deadlock, or the cycle of waits that it can be caught in.

Take the instructions as nodes, with an edge to each from the one before it on its rank, from a
message's send to the wait for its receive and from its receive to the wait for its send; the
reduces of one group, one on each of its ranks, are one node; a relay has an edge to the one that
it passes on to. Let every channel's receives be
posted in the order of its sends. Then a run deadlocks if and only if this graph has a cycle:

*Acyclic: no deadlock.* As long as instructions are left, consider the first of them in a
topological order. All before it on its rank are done, so it is its rank's next. If it waits for
a message, then the send and the receive of that message are posted, and so, since both ends
follow the channel's order, are those of every earlier message of the channel: they are carried
one after the other and the wait ends. If it reduces, it is next on all its ranks, which meet. If it
relays, what it waits for has been passed on. All else never blocks. So some rank can always go on,
and with finitely many instructions all end.

*Cyclic: deadlock.* No instruction on the cycle can be the first of them to end.

:func:`prove` runs through the program once in such an order, as far as one exists: linear time.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from typing import NamedTuple, TypeAlias

from pipeloom.ir.errors import InvalidScheduleError
from pipeloom.ir.model.program import (
    Instruction,
    Program,
    Receive,
    Reduce,
    Relay,
    RelayKind,
    Send,
    Tensor,
    WaitReceive,
    WaitSend,
)

from .segments import Row

Rows: TypeAlias = tuple[Row, ...]


class Link(NamedTuple):
    """One hop of a relay."""

    kind: RelayKind
    source: int
    target: int


Meets: TypeAlias = Send | Receive | WaitSend | WaitReceive | Reduce | Relay
Meeting: TypeAlias = Tensor | Reduce | Link


def prove(program: Program) -> None:
    """Raises InvalidScheduleError, naming the cycle of waits, where ``program`` can deadlock."""
    rows = program.instructions
    violations = _out_of_order(rows)
    if violations:
        raise InvalidScheduleError(violations)
    at = run_dry(rows)
    if any(i < len(row) for i, row in zip(at, rows, strict=True)):
        raise InvalidScheduleError([_cycle(rows, at)])


def _out_of_order(rows: Rows) -> list[str]:
    """One line for each channel whose receives are not posted in the order of its sends."""
    sent: dict[tuple[int, int], list[Tensor]] = defaultdict(list)
    received: dict[tuple[int, int], list[Tensor]] = defaultdict(list)
    for rank, row in enumerate(rows):
        for item in row:
            if isinstance(item, Send):
                sent[rank, item.target].append(item.tensor)
            elif isinstance(item, Receive):
                received[item.source, rank].append(item.tensor)
    violations = []
    for channel in sorted(sent.keys() | received.keys()):
        pairs = enumerate(zip_longest(sent[channel], received[channel]))
        wrong = next(((i, s, r) for i, (s, r) in pairs if s != r), None)
        if wrong is not None:
            i, s, r = wrong
            violations.append(
                f"channel {channel[0]} -> {channel[1]}: message {i} is sent as {s or 'nothing'} "
                f"and received as {r or 'nothing'}"
            )
    return violations


def run_dry(rows: Rows) -> list[int]:
    """How many instructions of each rank can be done: all of them where no deadlock exists.

    A message, a reduce or a hop of a relay is a meeting that takes place once all who take part
    have come: the send and the receive of a message, every rank of a reduce, the relay that passes
    on.
    """
    run = _DryRun(rows, [0] * len(rows), _parties(rows))
    while run.ready:
        run.advance(run.ready.popleft())
    return run.at


@dataclass(slots=True)
class _DryRun:
    """``at``: the next instruction of each rank; ``missing``: who has yet to come to each
    meeting."""

    rows: Rows
    at: list[int]
    missing: dict[Meeting, int]
    waiting: dict[Meeting, list[int]] = field(default_factory=lambda: defaultdict(list))
    ready: deque[int] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self.ready.extend(range(len(self.rows)))

    def advance(self, rank: int) -> None:
        """Runs ``rank`` as far as it gets."""
        for item in islice(self.rows[rank], self.at[rank], None):
            if isinstance(item, Send | Receive | Reduce):
                self._come(_joined(item))
            awaited = _awaited(item, rank)
            if awaited is not None and self.missing[awaited]:
                self.waiting[awaited].append(rank)
                break
            self._pass_on(item, rank)
            self.at[rank] += 1

    def _come(self, meeting: Meeting) -> None:
        self.missing[meeting] -= 1
        if self.missing[meeting]:
            return
        for other in self.waiting.pop(meeting, ()):
            self._pass_on(self.rows[other][self.at[other]], other)
            self.at[other] += 1  # what it stopped at is done
            self.ready.append(other)

    def _pass_on(self, item: Instruction, rank: int) -> None:
        if isinstance(item, Relay) and item.target is not None:
            self._come(Link(item.kind, rank, item.target))


def _joined(item: Send | Receive | Reduce) -> Meeting:
    return item if isinstance(item, Reduce) else item.tensor


def _awaited(item: Instruction, rank: int) -> Meeting | None:
    """The meeting that ``item`` waits for on ``rank``; None where it never blocks."""
    if isinstance(item, Relay):
        return None if item.source is None else Link(item.kind, item.source, rank)
    if isinstance(item, Reduce):
        return item
    return item.tensor if isinstance(item, WaitSend | WaitReceive) else None


def _parties(rows: Rows) -> dict[Meeting, int]:
    """How many come to each meeting: two to a message, all of its ranks to a reduce, one to a
    hop."""
    parties: dict[Meeting, int] = defaultdict(lambda: 2)
    for rank, row in enumerate(rows):
        for item in row:
            if isinstance(item, Reduce):
                parties[item] = parties.get(item, 0) + 1
            elif isinstance(item, Relay) and item.source is not None:
                parties[Link(item.kind, item.source, rank)] = 1
    return parties


def _cycle(rows: Rows, at: list[int]) -> str:
    """The ranks that wait for each other in a ring, and what each of them waits for."""
    import networkx as nx  # here: only a program that is rejected needs it

    waits: nx.DiGraph[int] = nx.DiGraph()
    for rank, row in enumerate(rows):
        if at[rank] == len(row):
            continue
        stopped = row[at[rank]]
        found = _missing_party(rows, at, stopped, rank)
        if found is None:
            return f"rank {rank} waits forever at '{stopped}': no rank has the other end of it"
        other, awaited = found
        line = f"rank {rank} stops at '{stopped}' until rank {other} does '{awaited}'"
        waits.add_edge(rank, other, line=line)
    return "deadlock: " + "; ".join(waits.edges[edge]["line"] for edge in nx.find_cycle(waits))


def _missing_party(
    rows: Rows, at: list[int], stopped: Instruction, waiter: int
) -> tuple[int, Meets] | None:
    """The rank and instruction yet to come that ``stopped`` waits for."""
    awaited = _awaited(stopped, waiter)
    for rank, row in enumerate(rows):
        for i in range(at[rank], len(row)):
            item = row[i]
            if (
                item is not stopped
                and isinstance(item, Send | Receive | Reduce | Relay)
                and _comes_to(item, rank) == awaited
                and not (isinstance(item, Reduce) and i == at[rank])
            ):
                return rank, item
    return None


def _comes_to(item: Send | Receive | Reduce | Relay, rank: int) -> Meeting | None:
    if isinstance(item, Relay):
        return None if item.target is None else Link(item.kind, rank, item.target)
    return _joined(item)
