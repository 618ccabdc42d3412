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
    Step,
    Tensor,
    TensorKind,
    WaitReceive,
    WaitSend,
)
from pipeloom.ir.schedule import Schedule, TravelKind
from pipeloom.ir.travel import previous

from .rows import Row
from .transfers import travelling


def free_travelled(program: Program) -> Program:
    """Frees what a rank received once it has left, or after its last use where it stays.

    An op uses the copy of its weights that came last. Waits for sends that follow the rank's last
    op go to the very end, where they overlap the optimizer's step, except for the owners' own
    weights, which that step changes.
    """
    until = _last_uses(program.schedule)
    copies = _copies(program.schedule)
    rows = (_with_frees(_drained(row, copies), until) for row in program.instructions)
    return replace(program, instructions=tuple(rows))


def _drained(row: Row, copies: set[Tensor]) -> Row:
    last = max((i for i, item in enumerate(row) if isinstance(item, Compute)), default=-1)
    tail = row[last + 1 :]
    late = [item for item in tail if isinstance(item, WaitSend) and item.tensor in copies]
    return (*row[: last + 1], *(item for item in tail if item not in late), *late)


def _with_frees(row: Row, until: dict[Tensor, Instruction]) -> Row:
    frees: dict[Instruction, list[Instruction]] = defaultdict(list)
    for item in row:
        if isinstance(item, Receive):
            frees[until[item.tensor]].append(Free(item.tensor))
    return tuple(new for item in row for new in (item, *frees.get(item, ())))


def _copies(schedule: Schedule) -> set[Tensor]:
    """What is sent from a buffer, not from the owner's weights."""
    return {
        tensor
        for tensor, earlier in zip(travelling(schedule), previous(schedule.transfers), strict=True)
        if earlier is not None or tensor.kind is TensorKind.GRADIENT
    }


def _last_uses(schedule: Schedule) -> dict[Tensor, Instruction]:
    """After which instruction of its receiver each tensor that travels may go."""
    tensors = travelling(schedule)
    result: dict[Tensor, Instruction] = {}
    stays: defaultdict[tuple[int, int], list[tuple[int, Tensor]]] = defaultdict(list)
    for x, t in enumerate(schedule.transfers):
        home = t.kind is TravelKind.GRADIENT
        result[tensors[x]] = Step(t.stage) if home else WaitReceive(tensors[x])
        if not home:
            stays[t.target, t.stage].append((t.before, tensors[x]))
    for rank in range(len(schedule.order)):
        for i, op in enumerate(schedule.ops(rank)):
            here = [stay for stay in stays[rank, op.stage] if stay[0] <= i]
            if here and op.kind is not OpKind.W:
                result[max(here)[1]] = Compute(op)
    for x, earlier in enumerate(previous(schedule.transfers)):
        if earlier is not None:
            result[tensors[earlier]] = WaitSend(tensors[x])
    return result
