"""The tensors that messages carry."""

from __future__ import annotations

from pipeloom.ir.cost.messages.placed_messages import Messages
from pipeloom.ir.model.ops import Op, OpKind, unpack
from pipeloom.ir.model.program import Tensor, TensorKind
from pipeloom.ir.model.schedule import Schedule, TransferKind
from pipeloom.ir.model.transfers import previous

_KINDS = {TransferKind.WEIGHT: TensorKind.WEIGHT, TransferKind.GRADIENT: TensorKind.GRADIENT}


def carried(schedule: Schedule) -> list[Tensor]:
    """The tensor of each transfer."""
    return [Tensor(_KINDS[t.kind], t.stage, x) for x, t in enumerate(schedule.transfers)]


def tensors(schedule: Schedule, messages: Messages) -> list[Tensor]:
    """The tensor of each message of the schedule."""
    return [*carried(schedule), *map(_needed, unpack(messages.used))]


def _needed(op: Op) -> Tensor:
    """The input that ``op`` needs from another op: x for an F, dy for a B or BW."""
    kind = TensorKind.X if op.kind is OpKind.F else TensorKind.DY
    return Tensor(kind, op.stage, op.microbatch)


def taken_on(schedule: Schedule) -> dict[Tensor, Tensor]:
    """For each transfer except the first of its item, the tensor of the previous transfer."""
    names = carried(schedule)
    return {
        name: names[earlier]
        for name, earlier in zip(names, previous(schedule.transfers), strict=True)
        if earlier is not None
    }
