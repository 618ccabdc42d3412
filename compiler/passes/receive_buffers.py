"""When received tensors are no longer needed, and receive buffers: as few as there are tensors
received and not yet freed at one time.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from pipeloom.ir.model.ops import Op, OpKind
from pipeloom.ir.model.program import (
    Buffer,
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

from .messages import taken_on
from .segments import Row, after_sends


def free_received(program: Program) -> Program:
    """Frees what a rank received once it is used for the last time.

    A microbatch's input and output gradient: once its weight gradient is done, as deferred weight
    gradients read both (dW is a product of the two). Weights and gradients: once they have been
    sent on and no op uses them; an op uses the copy of its weights that was waited for last, and a
    gradient at home is added to the owner's when it is waited for.
    """
    before = taken_on(program.schedule)
    rows = (_with_frees(row, _last_uses(row, before)) for row in program.instructions)
    return replace(program, instructions=tuple(rows))


def _with_frees(row: Row, last: dict[Tensor, int]) -> Row:
    frees: dict[int, list[Instruction]] = defaultdict(list)
    for item in row:
        if isinstance(item, Receive):
            at = last[item.tensor]
            if isinstance(row[at], Compute):
                at = after_sends(row, at)
            frees[at].append(Free(item.tensor))
    return tuple(new for i, item in enumerate(row) for new in (item, *frees.get(i, ())))


def _last_uses(row: Row, before: dict[Tensor, Tensor]) -> dict[Tensor, int]:
    """The last use of each received tensor in a rank's row; a wait for it is a use."""
    last: dict[Tensor, int] = {}
    here: dict[int, Tensor] = {}  # by stage: the weights that came last
    for i, item in enumerate(row):
        if isinstance(item, WaitReceive):
            last[item.tensor] = i
            if item.tensor.kind is TensorKind.WEIGHT:
                here[item.tensor.stage] = item.tensor
        elif isinstance(item, WaitSend) and item.tensor in before:
            last[before[item.tensor]] = i
        elif isinstance(item, Compute):
            last |= {tensor: i for tensor in _read(item.op, here) if tensor in last}
    return last


def _read(op: Op, here: dict[int, Tensor]) -> list[Tensor]:
    """The tensors that an op reads: its weights, and for weight gradients both activations."""
    weights = [here[op.stage]] if op.kind is not OpKind.W and op.stage in here else []
    if op.kind not in (OpKind.W, OpKind.BW):
        return weights
    pair = (TensorKind.X, TensorKind.DY)
    return [*weights, *(Tensor(kind, op.stage, op.microbatch) for kind in pair)]


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
