"""Receive buffers: as few as there are tensors received and not yet freed at one time."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from pipeloom.ir.model.program import (
    Buffer,
    Free,
    Instruction,
    Program,
    Receive,
    Tensor,
    TensorKind,
)

from .segments import Row


def share_buffers(program: Program) -> Program:
    """Gives each receive a free buffer that serves it, and makes a new one only without.

    A buffer of activations serves one kind and stage, one of weights or of gradients any stage's,
    and is named by the largest of those that it serves.
    A buffer is taken from the posting of its receive to the free of its tensor. The number made
    for one use is the largest number taken at the same time: when the n-th is made, the n - 1
    before it are all taken, so that n tensors are live at that point of the program. No allocation
    can do with fewer.
    """
    stages = program.schedule.problem.profile.stages
    sizes = [stage.weight_bytes or 0.0 for stage in stages]
    shared = [_shared(row, sizes) for row in program.instructions]
    return replace(
        program,
        instructions=tuple(row for row, _ in shared),
        buffers=tuple(buffers for _, buffers in shared),
    )


def _shared(row: Row, sizes: list[float]) -> tuple[Row, tuple[Buffer, ...]]:
    buffers: list[Buffer] = []
    idle: dict[Buffer | TensorKind, list[int]] = defaultdict(list)
    taken: dict[Tensor, int] = {}
    renumbered: list[Instruction] = []
    for item in row:
        if isinstance(item, Receive):
            tensor, pool = item.tensor, idle[_use(item.tensor)]
            if not pool:
                pool.append(len(buffers))
                buffers.append(Buffer(tensor.kind, tensor.stage))
            at = taken[tensor] = pool.pop()
            if sizes[tensor.stage] > sizes[buffers[at].stage]:
                buffers[at] = Buffer(tensor.kind, tensor.stage)
            renumbered.append(Receive(tensor, item.source, at))
            continue
        if isinstance(item, Free):
            idle[_use(item.tensor)].append(taken.pop(item.tensor))
        renumbered.append(item)
    return tuple(renumbered), tuple(buffers)


def _use(tensor: Tensor) -> Buffer | TensorKind:
    """The use of a buffer; tensors of one use can share a buffer."""
    if tensor.kind in (TensorKind.WEIGHT, TensorKind.GRADIENT):
        return tensor.kind
    return Buffer(tensor.kind, tensor.stage)
