"""Inserts the sends, receives and waits of all messages, and moves the final waits for sends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pipeloom.ir.cost.messages.placed_messages import SLACK, PlacedMessages, Post
from pipeloom.ir.model import program as ir
from pipeloom.ir.model.program import Program

from .messages import taken_on, tensors
from .segments import Row, joined, segments


@dataclass(frozen=True, slots=True)
class PlaceMessages:
    """Add the sends, receives and waits of all messages.

    Their positions are described in
    :class:`pipeloom.ir.cost.messages.placed_messages.PlacedMessages`. The buffer of a receive is
    the number of the message; :func:`.receive_buffers.share_buffers` replaces it.
    """

    slack: int = SLACK

    def __call__(self, program: Program) -> Program:
        placed = PlacedMessages.of(program.schedule, self.slack)
        names = tensors(program.schedule, placed.messages)
        routes = placed.messages.routes
        source, target = routes.source.tolist(), routes.target.tolist()
        make: dict[int, Callable[[int], ir.Instruction]] = {
            Post.RECEIVE: lambda x: ir.Receive(names[x], source[x], x),
            Post.SEND: lambda x: ir.Send(names[x], target[x]),
            Post.WAIT_SEND: lambda x: ir.WaitSend(names[x]),
            Post.WAIT_RECEIVE: lambda x: ir.WaitReceive(names[x]),
        }
        rows = list(map(segments, program.instructions))
        entries = (placed.rank, placed.boundary, placed.post, placed.message)
        for rank, boundary, post, x in zip(*(part.tolist() for part in entries), strict=True):
            rows[rank][boundary].append(make[post](x))
        return replace(program, instructions=tuple(map(joined, rows)))


def drain_sends(program: Program) -> Program:
    """Move the waits for sends that follow a rank's last op to the end of the program.

    They overlap with the optimizer step there. The waits for the owner's own weights stay before
    the step, which modifies them.
    """
    before = taken_on(program.schedule)

    def drained(row: Row) -> Row:
        last = max((i for i, item in enumerate(row) if isinstance(item, ir.Compute)), default=-1)
        tail = row[last + 1 :]
        late = [
            item
            for item in tail
            if isinstance(item, ir.WaitSend)
            and (item.tensor.kind is not ir.TensorKind.WEIGHT or item.tensor in before)
        ]
        return (*row[: last + 1], *(item for item in tail if item not in late), *late)

    return replace(program, instructions=tuple(map(drained, program.instructions)))
