"""Messages for the weights and gradients that travel, placed as the schedule plans them.

Every rank's instructions follow one order of all that happens on all ranks (:mod:`.agenda`): a
wait comes after the departure or arrival that it waits for, whose send and receive come before it.
So no two ranks can wait for each other. Sends that need nothing more than the op before them and
receives are then brought forward past waits, which takes nothing away from any rank.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

from pipeloom.ir.program import (
    Buffer,
    Instruction,
    Program,
    Receive,
    Send,
    Tensor,
    TensorKind,
    WaitReceive,
    WaitSend,
)
from pipeloom.ir.schedule import Schedule, TravelKind
from pipeloom.ir.travel import previous

from .agenda import Agenda, agenda
from .rows import Row, joined, segments

_LAST = float("inf")
_KINDS = {TravelKind.WEIGHT: TensorKind.WEIGHT, TravelKind.GRADIENT: TensorKind.GRADIENT}


@dataclass(frozen=True, slots=True)
class _Entry:
    """An instruction, the boundary between two ops where it stands, its place in the agenda."""

    boundary: int
    place: float
    instruction: Instruction


def place_transfers(program: Program) -> Program:
    """Adds the sends, receives and waits of all transfers, each receive with its own buffer.

    A receive is posted where the schedule has room for it, but in the order of the sender's
    sends. A wait for a receive stands before the first op that needs it or before the send that
    takes it on; a wait for a send before the first op planned to start after it has arrived (which
    an op that it blocks does), or, where it is the owner's and blocks none, after the last op.
    """
    schedule = program.schedule
    plan = agenda(schedule)
    tensors = travelling(schedule)
    entries: list[list[_Entry]] = [[] for _ in program.instructions]
    buffers: list[list[Buffer]] = [[] for _ in program.instructions]
    for x in _receive_order(plan):
        t = schedule.transfers[x]
        receive = Receive(tensors[x], t.source, len(buffers[t.target]))
        buffers[t.target].append(Buffer(tensors[x].kind, t.stage))
        entries[t.target].append(_Entry(0, plan.leaves[x], receive))
    _post(entries, schedule)
    _wait_and_send(entries, schedule, plan, tensors)
    rows = [_merged(row, new) for row, new in zip(program.instructions, entries, strict=True)]
    return replace(program, instructions=tuple(rows), buffers=tuple(map(tuple, buffers)))


def travelling(schedule: Schedule) -> list[Tensor]:
    """The name of what each transfer carries."""
    return [Tensor(_KINDS[t.kind], t.stage, x) for x, t in enumerate(schedule.transfers)]


def _receive_order(plan: Agenda) -> list[int]:
    return sorted(range(len(plan.leaves)), key=plan.leaves.__getitem__)


def _post(entries: list[list[_Entry]], schedule: Schedule) -> None:
    """Moves each receive to where there is room for it, in the order of its channel's sends."""
    for row in entries:
        latest: dict[int, int] = defaultdict(int)
        for i, entry in enumerate(row):
            receive = entry.instruction
            assert isinstance(receive, Receive)
            room = schedule.transfers[receive.tensor.index].room
            latest[receive.source] = max(latest[receive.source], room)
            row[i] = replace(entry, boundary=latest[receive.source])


def _wait_and_send(
    entries: list[list[_Entry]], schedule: Schedule, plan: Agenda, tensors: list[Tensor]
) -> None:
    before = previous(schedule.transfers)
    taken_on = {earlier: x for x, earlier in enumerate(before) if earlier is not None}
    for x, t in enumerate(schedule.transfers):
        leaves, arrives = plan.leaves[x], plan.arrives[x]
        sent = _Entry(plan.boundary(t.source, leaves), leaves, Send(tensors[x], t.target))
        # what the owner sends takes no buffer that could be given back: it waits after its ops
        own = t.kind is TravelKind.WEIGHT and before[x] is None and t.blocks is None
        end = len(plan.ops[t.source]) if own else plan.boundary(t.source, arrives)
        gone = _Entry(end, arrives, WaitSend(tensors[x]))
        entries[t.source] += [sent, gone]
        needed: tuple[int, float] = t.before, _LAST
        if x in taken_on:
            onward = plan.leaves[taken_on[x]]
            # half a place: after all that comes before the send, before the send itself
            needed = min(needed, (plan.boundary(t.target, onward), onward - 0.5))
        entries[t.target].append(_Entry(*needed, WaitReceive(tensors[x])))


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

    First the sends that need no wait, as far as their channel's order allows; then the waits for
    sends with the receives, each receive right after the last of those that comes before it (its
    buffer may be one that they give back) and before all waits for receives.
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
        if isinstance(entry.instruction, WaitSend):
            posts = len(result)
    return [entry.instruction for entry in (*sends, *result)]


def _ready_sends(entries: list[_Entry]) -> tuple[list[_Entry], list[_Entry]]:
    """The sends that no wait among the entries holds up, and everything else."""
    ready, rest = [], []
    held_up: set[int] = set()  # targets of sends that must wait
    waited = False
    for entry in entries:
        item = entry.instruction
        if isinstance(item, WaitReceive):
            waited = True
        if isinstance(item, Send) and not (waited or item.target in held_up):
            ready.append(entry)
            continue
        if isinstance(item, Send):
            held_up.add(item.target)
        rest.append(entry)
    return ready, rest
