"""Proves that a program cannot deadlock, or finds the cycle of waits in which it can.

Consider the graph whose nodes are the instructions, with edges from each instruction to the next on
its rank, from a message's send to the wait for its receive, from its receive to the wait for its
send, and from each relay (see :mod:`.norm_relay`) to the relay that receives its numbers. The
reduces of one group, one on each of its ranks, are a single node. Assume that the receives of every
channel are posted in the order of its sends. Then a run deadlocks if and only if this graph has a
cycle:

*Acyclic: no deadlock.* As long as instructions are left, consider the first of them in a
topological order. All instructions before it on its rank are done, so it is the next of its rank.
If it waits for a message, the send and the receive of that message are posted. As both ends follow
the channel's order, so are those of every earlier message of the channel. They are sent one after
the other, and the wait ends. If it is a reduce, it is next on all its ranks, which then run it
together. If it is a relay, the relay that it waits for is done. Other instructions never block. So
some rank can always continue, and since there are finitely many instructions, all of them end.

*Cyclic: deadlock.* None of the instructions on the cycle can end before another one on the cycle
has ended.

:func:`prove` goes through the program once in such an order, as far as there is one, in linear
time. The code calls a message, a reduce or a hop of a relay a *meeting*: some instructions come to
it (such as a send and a receive), without blocking, and others await it (such as the waits), and
continue when all instructions that come to it are done.
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
    """One hop of a relay: the numbers that one rank sends to another."""

    kind: ir.RelayKind
    source: int
    target: int


Meeting: TypeAlias = ir.Tensor | ir.Reduce | RelayHop


Action: TypeAlias = tuple[bool, Meeting, ir.Instruction]
"""What an instruction does at a meeting: whether it comes to the meeting (or awaits it), the
meeting, and the instruction."""


def prove(program: Program) -> None:
    """Raise InvalidScheduleError, with the cycle of waits, if ``program`` can deadlock.

    Also raises it if the receives of a channel are not posted in the order of its sends.
    """
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
    """The remaining actions of each rank, of which the first waits forever.

    If there is no deadlock, the list of every rank is empty.
    """
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
            elif missing.get(meeting, 1):  # 1: no instruction comes to it
                waiting[meeting].append(rank)
                break
            at[rank] += 1
    return [row[i:] for i, row in zip(at, rows, strict=True)]


def _cycle(left: list[list[Action]]) -> str:
    """One line about a cycle of ranks that wait for each other: what each of them waits for.

    If a rank waits for something that no rank provides, the line names this rank instead. ``left``:
    the remaining actions of each rank (:func:`_left`).
    """
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
    path = [next(iter(waits))]  # each rank waits for one other
    while (other := waits[path[-1]][1]) not in path:
        path.append(other)
    return "deadlock: " + "; ".join(waits[rank][0] for rank in path[path.index(other) :])
