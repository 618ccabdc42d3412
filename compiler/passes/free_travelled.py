"""When received weights and gradients are no longer needed."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from pipeloom.ir.ops import OpKind
from pipeloom.ir.program import (
    Compute,
    Free,
    Instruction,
    Program,
    Receive,
    Tensor,
    TensorKind,
    WaitReceive,
    WaitSend,
)
from pipeloom.ir.schedule import Schedule
from pipeloom.ir.travel import previous

from .rows import Row
from .transfers import travelling


def free_travelled(program: Program) -> Program:
    """Frees what a rank received once it has been sent on and used for the last time.

    An op uses the copy of its weights that was waited for last. A gradient at home is added to the
    owner's when it is waited for, and freed at once. Waits for sends that follow the rank's last op
    go to the very end, where they overlap the optimizer's step, except for the owners' own weights,
    which that step changes.
    """
    schedule = program.schedule
    uses, copies = _uses(schedule), _copies(schedule)
    rows = (_with_frees(_drained(row, copies), uses) for row in program.instructions)
    return replace(program, instructions=tuple(rows))


def _drained(row: Row, copies: set[Tensor]) -> Row:
    last = max((i for i, item in enumerate(row) if isinstance(item, Compute)), default=-1)
    tail = row[last + 1 :]
    late = [item for item in tail if isinstance(item, WaitSend) and item.tensor in copies]
    return (*row[: last + 1], *(item for item in tail if item not in late), *late)


def _with_frees(row: Row, uses: dict[Instruction, list[Tensor]]) -> Row:
    last = {tensor: i for i, item in enumerate(row) for tensor in uses.get(item, ())}
    last |= _last_computes(row, last)
    frees: dict[int, list[Instruction]] = defaultdict(list)
    for item in row:
        if isinstance(item, Receive):
            frees[last[item.tensor]].append(Free(item.tensor))
    return tuple(new for i, item in enumerate(row) for new in (item, *frees.get(i, ())))


def _last_computes(row: Row, last: dict[Tensor, int]) -> dict[Tensor, int]:
    """Where a compute uses received weights later than all else does."""
    here: dict[int, Tensor] = {}  # by stage: what came last
    later = {}
    for i, item in enumerate(row):
        if isinstance(item, WaitReceive) and item.tensor.kind is TensorKind.WEIGHT:
            here[item.tensor.stage] = item.tensor
        elif isinstance(item, Compute) and item.op.kind is not OpKind.W:
            tensor = here.get(item.op.stage)
            if tensor is not None and i > last[tensor]:
                later[tensor] = i
    return later


def _copies(schedule: Schedule) -> set[Tensor]:
    """What is sent from a buffer, not from the owner's weights."""
    return {
        tensor
        for tensor, earlier in zip(travelling(schedule), previous(schedule.transfers), strict=True)
        if earlier is not None or tensor.kind is TensorKind.GRADIENT
    }


def _uses(schedule: Schedule) -> dict[Instruction, list[Tensor]]:
    """The received tensors that must still be there when an instruction, no compute, comes."""
    tensors = travelling(schedule)
    uses: dict[Instruction, list[Tensor]] = defaultdict(list)
    for x, earlier in enumerate(previous(schedule.transfers)):
        uses[WaitReceive(tensors[x])].append(tensors[x])
        if earlier is not None:
            uses[WaitSend(tensors[x])].append(tensors[earlier])
    return uses
