"""Inserts the sends, receives and waits of all messages, and postpones the last waits for sends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pipeloom.ir.cost.messages.placed_messages import SLACK, Messages, PlacedMessages, Post
from pipeloom.ir.model import program as ir
from pipeloom.ir.model.ops import Op, OpKind, unpack
from pipeloom.ir.model.program import Program, Tensor, TensorKind
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.model.transfers import previous

from .segments import Row, joined, segments


@dataclass(frozen=True, slots=True)
class PlaceMessages:
    """A pass that adds the sends, receives and waits of all messages.

    :class:`pipeloom.ir.cost.messages.placed_messages.PlacedMessages` describes their positions and
    ``slack``. Each receive gets the number of its message as a preliminary buffer;
    :func:`.receive_buffers.share_buffers` replaces it.
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
    """Move the waits for sends that follow a rank's last op to the end of its program.

    There, the sends overlap with the optimizer step. Waits for sends of weights that the rank
    itself owns stay before the step, because the step modifies these weights.
    """
    before = taken_on(program.schedule)

    def drained(row: Row) -> Row:
        last = max((i for i, item in enumerate(row) if isinstance(item, ir.Compute)), default=-1)
        tail = row[last + 1 :]
        late = [
            item
            for item in tail
            if isinstance(item, ir.WaitSend)
            and (item.tensor.kind is not TensorKind.WEIGHT or item.tensor in before)
        ]
        return (*row[: last + 1], *(item for item in tail if item not in late), *late)

    return replace(program, instructions=tuple(map(drained, program.instructions)))


def carried(schedule: Schedule) -> list[Tensor]:
    """The tensor that each weight transfer of the schedule sends, in the order of the transfers."""
    return [Tensor(TensorKind[t.kind.name], t.stage, x) for x, t in enumerate(schedule.transfers)]


def tensors(schedule: Schedule, messages: Messages) -> list[Tensor]:
    """The tensors of all messages: those of transfers, then activations and their gradients."""
    return [*carried(schedule), *map(_needed, unpack(messages.used))]


def _needed(op: Op) -> Tensor:
    """The tensor that ``op`` needs from another op: x for an F, dy for a B or BW."""
    kind = TensorKind.X if op.kind is OpKind.F else TensorKind.DY
    return Tensor(kind, op.stage, op.microbatch)


def taken_on(schedule: Schedule) -> dict[Tensor, Tensor]:
    """For the tensor of each transfer, the tensor of the previous transfer of the same copy.

    The previous transfer has brought the copy to the sender. The tensor of a copy's first transfer
    is not a key of the dictionary.
    """
    names = carried(schedule)
    return {
        name: names[earlier]
        for name, earlier in zip(names, previous(schedule.transfers), strict=True)
        if earlier is not None
    }
