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
from pipeloom.ir.travel import journeys, previous

from .rows import Row
from .transfers import travelling


def free_travelled(program: Program) -> Program:
    """Frees what a rank received once it has been sent on and used for the last time.

    An op uses the copy of its weights that came last. Waits for sends that follow the rank's last
    op go to the very end, where they overlap the optimizer's step, except for the owners' own
    weights, which that step changes.
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
    frees: dict[int, list[Instruction]] = defaultdict(list)
    for item in row:
        if isinstance(item, Receive):
            frees[last[item.tensor]].append(Free(item.tensor))
    return tuple(new for i, item in enumerate(row) for new in (item, *frees.get(i, ())))


def _copies(schedule: Schedule) -> set[Tensor]:
    """What is sent from a buffer, not from the owner's weights."""
    return {
        tensor
        for tensor, earlier in zip(travelling(schedule), previous(schedule.transfers), strict=True)
        if earlier is not None or tensor.kind is TensorKind.GRADIENT
    }


def _uses(schedule: Schedule) -> dict[Instruction, list[Tensor]]:
    """The received tensors that must still be there when an instruction of their rank comes."""
    tensors = travelling(schedule)
    uses: dict[Instruction, list[Tensor]] = defaultdict(list)
    came: defaultdict[tuple[int, int], list[tuple[int, Tensor]]] = defaultdict(list)
    for x, (t, earlier) in enumerate(
        zip(schedule.transfers, previous(schedule.transfers), strict=True)
    ):
        uses[WaitReceive(tensors[x])].append(tensors[x])
        if earlier is not None:
            uses[WaitSend(tensors[x])].append(tensors[earlier])
        if t.kind is TravelKind.WEIGHT:
            came[t.target, t.stage].append((t.before, tensors[x]))
    for journey in journeys(schedule.transfers).values():
        tensor = tensors[journey[-1]]
        if tensor.kind is TensorKind.GRADIENT:
            uses[Step(tensor.stage)].append(tensor)
    for rank in range(len(schedule.order)):
        for i, op in enumerate(schedule.ops(rank)):
            here = [visit for visit in came[rank, op.stage] if visit[0] <= i]
            if here and op.kind is not OpKind.W:
                uses[Compute(op)].append(max(here)[1])
    return uses
