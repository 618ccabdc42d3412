"""As few receive buffers as there are tensors received and not yet freed at one time."""

from __future__ import annotations

from dataclasses import replace

from pipeloom.ir.program import Buffer, Free, Instruction, Program, Receive, Tensor

from .rows import Row


def share_buffers(program: Program) -> Program:
    """Gives each receive a free buffer of its kind and stage, and makes a new one only without.

    A buffer is taken from the posting of its receive to the free of its tensor. The number made
    for a kind and stage is the largest number taken at the same time: when the n-th is made, the
    n - 1 before it are all taken, so that n tensors are live at that point of the program. No
    allocation can do with fewer.
    """
    shared = [_shared(row) for row in program.instructions]
    return replace(
        program,
        instructions=tuple(row for row, _ in shared),
        buffers=tuple(buffers for _, buffers in shared),
    )


def _shared(row: Row) -> tuple[Row, tuple[Buffer, ...]]:
    buffers: list[Buffer] = []
    idle: dict[Buffer, list[int]] = {}
    taken: dict[Tensor, int] = {}
    renumbered: list[Instruction] = []
    for item in row:
        if isinstance(item, Receive):
            place = Buffer(item.tensor.kind, item.tensor.stage)
            pool = idle.setdefault(place, [])
            if not pool:
                pool.append(len(buffers))
                buffers.append(place)
            taken[item.tensor] = pool.pop()
            renumbered.append(Receive(item.tensor, item.source, taken[item.tensor]))
            continue
        if isinstance(item, Free):
            idle[Buffer(item.tensor.kind, item.tensor.stage)].append(taken.pop(item.tensor))
        renumbered.append(item)
    return tuple(renumbered), tuple(buffers)
