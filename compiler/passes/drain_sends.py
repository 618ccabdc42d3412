"""The last waits for sends, where they hold up nothing."""

from __future__ import annotations

from dataclasses import replace

from pipeloom.ir.model.program import Compute, Program, TensorKind, WaitSend

from .messages import taken_on
from .segments import Row


def drain_sends(program: Program) -> Program:
    """Moves the waits for sends after the rank's last op to the very end.

    They overlap the optimizer's step there. Those for the owner's own weights stay before it: it
    changes them.
    """
    before = taken_on(program.schedule)

    def drained(row: Row) -> Row:
        last = max((i for i, item in enumerate(row) if isinstance(item, Compute)), default=-1)
        tail = row[last + 1 :]
        late = [
            item
            for item in tail
            if isinstance(item, WaitSend)
            and (item.tensor.kind is not TensorKind.WEIGHT or item.tensor in before)
        ]
        return (*row[: last + 1], *(item for item in tail if item not in late), *late)

    return replace(program, instructions=tuple(map(drained, program.instructions)))
