"""Inserts the sends, receives and waits of all messages, and moves the final waits for sends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pipeloom.ir.cost.messages.placed_messages import SLACK, PlacedMessages, Post
from pipeloom.ir.model import program as ir
from pipeloom.ir.model.program import Program

from .messages import taken_on, tensors
from .segments import Row, joined, segments


@dataclass(frozen=True, slots=True)
class PlaceMessages:
    """Add the sends, receives and waits of all messages, each receive with its own buffer.

    Their positions are described in
    :class:`pipeloom.ir.cost.messages.placed_messages.PlacedMessages`.
    """

    slack: int = SLACK

    def __call__(self, program: Program) -> Program:
        placed = PlacedMessages.of(program.schedule, self.slack)
        names = tensors(program.schedule, placed.messages)
        numbers, buffers = _buffers(placed, names, len(program.instructions))
        rows = list(map(segments, program.instructions))
        entries = (placed.rank, placed.boundary, placed.post, placed.message)
        source, target = placed.messages.routes.source, placed.messages.routes.target
        make = _makers(names, source.tolist(), target.tolist(), numbers)
        for rank, boundary, post, x in zip(*(part.tolist() for part in entries), strict=True):
            rows[rank][boundary].append(make[post](x))
        return replace(program, instructions=tuple(map(joined, rows)), buffers=buffers)


def _buffers(
    placed: PlacedMessages, names: Sequence[ir.Tensor], ranks: int
) -> tuple[list[int], tuple[tuple[ir.Buffer, ...], ...]]:
    """The index of each message's buffer, and each rank's buffers, one per received message."""
    numbers, targets = [0] * len(names), placed.messages.routes.target.tolist()
    buffers: list[list[ir.Buffer]] = [[] for _ in range(ranks)]
    for x in placed.posted.tolist():
        numbers[x] = len(buffers[targets[x]])
        buffers[targets[x]].append(ir.Buffer(names[x].kind, names[x].stage))
    return numbers, tuple(map(tuple, buffers))


def _makers(
    names: Sequence[ir.Tensor], source: Sequence[int], target: Sequence[int], numbers: Sequence[int]
) -> dict[int, Callable[[int], ir.Instruction]]:
    """For each :class:`Post`, the function that creates the instruction of a message."""
    return {
        Post.RECEIVE: lambda x: ir.Receive(names[x], source[x], numbers[x]),
        Post.SEND: lambda x: ir.Send(names[x], target[x]),
        Post.WAIT_SEND: lambda x: ir.WaitSend(names[x]),
        Post.WAIT_RECEIVE: lambda x: ir.WaitReceive(names[x]),
    }


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
