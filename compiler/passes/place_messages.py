"""Sends, receives and waits of all messages, placed as planned.

Every rank's instructions follow one order of all that happens on all ranks (:mod:`.event_order`):
the send and the receive of a message stand where it leaves, its waits where it arrives or later. So
no two ranks can wait for each other, whatever is sent. What never blocks is then brought forward
past waits, which takes nothing away from any rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

import numpy as np

from pipeloom.ir.cost.remat import passed
from pipeloom.ir.cost.steady_state.send_points import SLACK
from pipeloom.ir.model.ops import FloatArray
from pipeloom.ir.model.program import (
    Buffer,
    Instruction,
    Program,
    Receive,
    Send,
    WaitReceive,
    WaitSend,
)
from pipeloom.ir.model.schedule import Schedule

from .event_order import EventOrder
from .messages import Message, messages
from .segments import Row, joined, segments

_LAST = float("inf")


@dataclass(frozen=True, slots=True)
class _Entry:
    """An instruction of a message, the boundary between two ops where it stands, its place in the
    event order."""

    boundary: int
    place: float
    instruction: Instruction
    message: Message


@dataclass(frozen=True, slots=True)
class PlaceMessages:
    """Adds the sends, receives and waits of all messages, each receive with its own buffer.

    ========== ======================== =====================================================
    \\          activations              weights and their gradients
    ========== ======================== =====================================================
    send       after the op that made   of what sets out here: ``slack`` ops before the op in
               them                     which it is planned to leave, for what it waits for may
                                        be elsewhere; of the others: when it is planned to
    receive    ``slack`` ops before it  where the schedule has room for it
               is needed at the latest
    wait for   at the end of the first  before the first op planned to start after it has
    the send   op that ends after it    arrived, which an op that it blocks does; of the
               has arrived              owner's weights that block none: after the last op
    wait for   before the op that       before the first op that needs it, or the send that
    it         needs it                 takes it on
    ========== ======================== =====================================================

    Receives of a channel are in the order of its sends. ``slack`` 1 lets a rank be up to an op
    later than planned: where every op's time varies by 20 %, slack 0 costs up to 2.3 % (more, the
    longer messages take), slack 1 nothing and some buffers more (``benchmarks/receives``).
    """

    slack: int = SLACK

    def __call__(self, program: Program) -> Program:
        schedule = program.schedule
        planned = messages(schedule, self.slack)
        plan = EventOrder.of(schedule, planned)
        entries, buffers = self._posts(schedule, planned, plan)
        for message, entry in zip(planned, _arrivals(planned, plan), strict=True):
            entries[message.target].append(entry)
        rows = map(_merged, program.instructions, entries)
        return replace(program, instructions=tuple(rows), buffers=tuple(map(tuple, buffers)))

    def _posts(
        self, schedule: Schedule, planned: Sequence[Message], plan: EventOrder
    ) -> tuple[list[list[_Entry]], list[list[Buffer]]]:
        """Each rank's receives, sends and waits for sends, in the order in which messages leave,
        and the receives' buffers."""
        ranks = range(len(schedule.order))
        entries: list[list[_Entry]] = [[] for _ in ranks]
        buffers: list[list[Buffer]] = [[] for _ in ranks]
        past = [passed(schedule, rank) for rank in ranks]
        latest: dict[tuple[int, int], tuple[int, int]] = defaultdict(lambda: (0, 0))
        for x in sorted(range(len(planned)), key=plan.leaves.__getitem__):
            m, leaves, arrives = planned[x], plan.leaves[x], plan.arrives[x]
            room, sent = latest[m.source, m.target]
            room = max(room, m.room)
            sent = max(sent, _posted(schedule, m, leaves, plan, self.slack))
            latest[m.source, m.target] = room, sent
            receive = Receive(m.tensor, m.source, len(buffers[m.target]))
            buffers[m.target].append(Buffer(m.tensor.kind, m.tensor.stage))
            gone = _gone(past[m.source], m, arrives, plan)
            entries[m.target].append(_Entry(room, leaves, receive, m))
            entries[m.source].append(_Entry(sent, leaves, Send(m.tensor, m.target), m))
            entries[m.source].append(_Entry(gone, arrives, WaitSend(m.tensor), m))
        return entries, buffers


def _posted(schedule: Schedule, message: Message, leaves: int, plan: EventOrder, slack: int) -> int:
    """The boundary at which the source posts the send, if its channel is free then."""
    boundary = plan.boundary(message.source, leaves)
    if message.activation or message.earlier is not None:
        return boundary
    assert schedule.timing is not None
    ended = int(np.searchsorted(schedule.timing.end[message.source], message.leaves, "right"))
    return min(boundary, max(message.after, ended - slack))


def _gone(past: FloatArray, message: Message, arrives: int, plan: EventOrder) -> int:
    """The boundary, by ``past`` beyond each op, at which the source makes sure that it has left."""
    count = len(past)
    if message.own and message.blocks is None:
        return count  # takes no buffer that could be given back
    boundary = plan.boundary(message.source, arrives)
    if not message.activation:
        return boundary
    ended = int(np.searchsorted(past, message.arrives)) + 1
    return min(max(boundary, ended), count)


def _arrivals(planned: Sequence[Message], plan: EventOrder) -> list[_Entry]:
    """The wait for each message."""
    found = [_Entry(m.before, _LAST, WaitReceive(m.tensor), m) for m in planned]
    for x, m in enumerate(planned):
        if m.earlier is not None:
            entry, onward = found[m.earlier], plan.leaves[x]
            # half a place: after all that comes before the send, before the send itself
            boundary, place = min(
                (entry.boundary, entry.place), (plan.boundary(m.source, onward), onward - 0.5)
            )
            found[m.earlier] = replace(entry, boundary=boundary, place=place)
    return found


def _merged(row: Row, entries: list[_Entry]) -> Row:
    """``row`` with the entries at their boundaries."""
    cut = segments(row)
    here: list[list[_Entry]] = [[] for _ in cut]
    for entry in entries:
        here[entry.boundary].append(entry)
    return joined(
        [
            [*segment, *_arranged(sorted(new, key=lambda entry: entry.place))]
            for segment, new in zip(cut, here, strict=True)
        ]
    )


def _arranged(entries: list[_Entry]) -> list[Instruction]:
    """One boundary's entries in order, but what never blocks as early as it may be.

    First the receives of weights and gradients that need no wait: that they are posted is news to
    the peer, which on Gloo goes the way of the data and would come after all that is sent before.
    Then the sends that need none, as far as their channel's order allows; then the waits for sends
    with the other receives, each right after the last of those before it that gives back a buffer
    it may take, and before all waits for receives.
    """
    sends, rest = _ready_sends(entries)
    result: list[_Entry] = []
    posts = 0  # where the next receive goes
    for entry in rest:
        if isinstance(entry.instruction, Receive):
            result.insert(posts, entry)
            posts += 1
            continue
        result.append(entry)
        if isinstance(entry.instruction, WaitSend) and not entry.message.activation:
            posts = len(result)
    first = list(takewhile(_heavy_receive, result))
    return [entry.instruction for entry in (*first, *sends, *result[len(first) :])]


def _heavy_receive(entry: _Entry) -> bool:
    return isinstance(entry.instruction, Receive) and not entry.message.activation


def _ready_sends(entries: list[_Entry]) -> tuple[list[_Entry], list[_Entry]]:
    """The sends that no wait among the entries holds up, and everything else."""
    ready, rest = [], []
    held_up: set[int] = set()  # targets of sends that must wait
    waited = False
    for entry in entries:
        item = entry.instruction
        if isinstance(item, WaitReceive):
            waited = True
        free = entry.message.earlier is None or not waited
        if isinstance(item, Send) and free and item.target not in held_up:
            ready.append(entry)
            continue
        if isinstance(item, Send):
            held_up.add(item.target)
        rest.append(entry)
    return ready, rest
