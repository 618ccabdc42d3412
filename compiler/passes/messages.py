"""What has to travel: a message wherever an op's input is made on another rank."""

from __future__ import annotations

from dataclasses import replace

from pipeloom.ir.ops import IntArray, Op, OpKind
from pipeloom.ir.program import (
    Buffer,
    Compute,
    Instruction,
    Program,
    Receive,
    Send,
    Tensor,
    TensorKind,
    WaitReceive,
)

from .rows import Row


def place_messages(program: Program) -> Program:
    """Sends right after the op that makes the tensor, waits for receives right before its user.

    Receives are posted at the start of the program in the order in which their sender sends, each
    into a buffer of its own. Stages that are neighbours on one rank need no message.
    """
    problem = program.schedule.problem
    owner = problem.placement.matrix(problem.stages, problem.microbatches)
    rows = [_with_messages(row, rank, owner) for rank, row in enumerate(program.instructions)]
    receives: list[list[Instruction]] = [[] for _ in rows]
    buffers: list[list[Buffer]] = [[] for _ in rows]
    for source, row in enumerate(rows):
        for item in row:
            if isinstance(item, Send):
                place = buffers[item.target]
                receives[item.target].append(Receive(item.tensor, source, len(place)))
                place.append(Buffer(item.tensor.kind, item.tensor.stage))
    return replace(
        program,
        instructions=tuple((*first, *row) for first, row in zip(receives, rows, strict=True)),
        buffers=tuple(map(tuple, buffers)),
    )


def _with_messages(row: Row, rank: int, owner: IntArray) -> list[Instruction]:
    """``row`` with the waits, computes and sends of one rank."""
    full: list[Instruction] = []
    for item in row:
        if not isinstance(item, Compute):
            full.append(item)
            continue
        needed = needs(item.op, owner)
        if needed is not None:
            full.append(WaitReceive(needed))
        full.append(item)
        made = makes(item.op, owner)
        if made is not None:
            full.append(made)
    return full


def needs(op: Op, owner: IntArray) -> Tensor | None:
    """What ``op`` receives from another rank; ``owner`` is the rank of each (stage, microbatch)."""
    s, j = op.stage, op.microbatch
    if op.kind is OpKind.F:
        return Tensor(TensorKind.X, s, j) if s > 0 and owner[s - 1, j] != owner[s, j] else None
    if op.kind is OpKind.W or s + 1 == len(owner) or owner[s + 1, j] == owner[s, j]:
        return None
    return Tensor(TensorKind.DY, s, j)


def makes(op: Op, owner: IntArray) -> Send | None:
    """What ``op`` sends to another rank: its output, or the gradient of its input."""
    j = op.microbatch
    if op.kind is OpKind.W:
        return None
    kind, user = (
        (TensorKind.X, op.stage + 1) if op.kind is OpKind.F else (TensorKind.DY, op.stage - 1)
    )
    if not 0 <= user < len(owner) or owner[user, j] == owner[op.stage, j]:
        return None
    return Send(Tensor(kind, user, j), int(owner[user, j]))
