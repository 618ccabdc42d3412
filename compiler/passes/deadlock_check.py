"""The proof that a program cannot deadlock, or the cycle of waits that it can be caught in.

Take the instructions as nodes, with an edge to each from the one before it on its rank, from a
message's send to the wait for its receive and from its receive to the wait for its send; the
reduces of one group, one on each of its ranks, are one node; a relay has an edge to the one that
it passes on to. Let every channel's receives be posted in the order of its sends. Then a run
deadlocks if and only if this graph has a cycle:

*Acyclic: no deadlock.* As long as instructions are left, consider the first of them in a
topological order. All before it on its rank are done, so it is its rank's next. If it waits for
a message, then the send and the receive of that message are posted, and so, since both ends
follow the channel's order, are those of every earlier message of the channel: they are carried
one after the other and the wait ends. If it reduces, it is next on all its ranks, which meet. If it
relays, what it waits for has been passed on. All else never blocks. So some rank can always go on,
and with finitely many instructions all end.

*Cyclic: deadlock.* No instruction on the cycle can be the first of them to end.

:func:`prove` runs through the program once in such an order, as far as one exists: linear time. A
message, a reduce or a hop of a relay is a meeting there: who comes to it does not block, and who
awaits it goes on once all have come.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from itertools import islice, zip_longest
from typing import NamedTuple, TypeAlias

from pipeloom.ir.errors import InvalidScheduleError
from pipeloom.ir.model import program as ir
from pipeloom.ir.model.program import Program

from .segments import Row

Rows: TypeAlias = tuple[Row, ...]


class RelayHop(NamedTuple):
    """One hop of a relay."""

    kind: ir.RelayKind
    source: int
    target: int


Meeting: TypeAlias = ir.Tensor | ir.Reduce | RelayHop


Action: TypeAlias = tuple[bool, Meeting, ir.Instruction]
"""An instruction comes to a meeting, or else awaits it."""


def prove(program: Program) -> None:
    """Raises InvalidScheduleError, naming the cycle of waits, where ``program`` can deadlock."""
    violations = _out_of_order(program.instructions)
    if violations:
        raise InvalidScheduleError(violations)
    rows = [
        [action for item in row for action in _actions(item, rank)]
        for rank, row in enumerate(program.instructions)
    ]
    left = _left(rows)
    if any(left):
        raise InvalidScheduleError([_cycle(left)])


def _out_of_order(rows: Rows) -> list[str]:
    """One line for each channel whose receives are not posted in the order of its sends."""
    sent: dict[tuple[int, int], list[ir.Tensor]] = defaultdict(list)
    received: dict[tuple[int, int], list[ir.Tensor]] = defaultdict(list)
    for rank, row in enumerate(rows):
        for item in row:
            if isinstance(item, ir.Send):
                sent[rank, item.target].append(item.tensor)
            elif isinstance(item, ir.Receive):
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


def _actions(item: ir.Instruction, rank: int) -> list[Action]:
    if isinstance(item, ir.Send | ir.Receive):
        return [(True, item.tensor, item)]
    if isinstance(item, ir.WaitSend | ir.WaitReceive):
        return [(False, item.tensor, item)]
    if isinstance(item, ir.Reduce):
        return [(True, item, item), (False, item, item)]
    result: list[Action] = []
    if isinstance(item, ir.Relay) and item.source is not None:
        result.append((False, RelayHop(item.kind, item.source, rank), item))
    if isinstance(item, ir.Relay) and item.target is not None:
        result.append((True, RelayHop(item.kind, rank, item.target), item))
    return result


def _left(rows: list[list[Action]]) -> list[list[Action]]:
    """Actions that each rank can never do: none without a deadlock, else it awaits the first."""
    missing = Counter(meeting for row in rows for comes, meeting, _ in row if comes)
    waiting: dict[Meeting, list[int]] = defaultdict(list)
    at, ready = [0] * len(rows), deque(range(len(rows)))
    while ready:
        rank = ready.popleft()
        for comes, meeting, _ in islice(rows[rank], at[rank], None):
            if comes:
                missing[meeting] -= 1
                if not missing[meeting]:
                    ready.extend(waiting.pop(meeting, ()))
            elif missing.get(meeting, 1):  # 1: nobody ever comes
                waiting[meeting].append(rank)
                break
            at[rank] += 1
    return [row[i:] for i, row in zip(at, rows, strict=True)]


def _cycle(left: list[list[Action]]) -> str:
    """The ranks that wait for each other in a ring, and what each of them waits for."""
    import networkx as nx  # here: only a program that is rejected needs it

    waits: dict[int, tuple[str, int]] = {}
    for rank, row in enumerate(left):
        if not row:
            continue
        _, awaited, stopped = row[0]
        who = (
            (f"rank {rank} stops at '{stopped}' until rank {other} does '{item}'", other)
            for other, actions in enumerate(left)
            for comes, meeting, item in actions
            if comes and meeting == awaited
        )
        found = next(who, None)
        if found is None:
            return f"rank {rank} waits forever at '{stopped}': no rank has the other end of it"
        waits[rank] = found
    ring = nx.find_cycle(nx.DiGraph((rank, other) for rank, (_, other) in waits.items()))
    return "deadlock: " + "; ".join(waits[rank][0] for rank, _ in ring)
