"""Frees received tensors after their last use, and lets receives share buffers."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from pipeloom.ir.model import program as ir
from pipeloom.ir.model.ops import Op, OpKind
from pipeloom.ir.model.program import Program

from .place_messages import taken_on
from .segments import Row, after_sends, inserted


def free_received(program: Program) -> Program:
    """Add an instruction that frees each received tensor after its last use.

    A separate weight gradient (W) reads the microbatch's input and output gradient (dW is a product
    of the two), so these are freed after it. Weights and their gradients are freed when they have
    been sent on and no op uses them. An op uses the copy of its weights that its rank waited for
    last. A gradient that has arrived at its owner is used at the wait, which adds it to the owner's
    own gradient.
    """
    before = taken_on(program.schedule)
    rows = (_with_frees(row, _last_uses(row, before)) for row in program.instructions)
    return replace(program, instructions=tuple(rows))


def _with_frees(row: Row, last: dict[ir.Tensor, int]) -> Row:
    frees: dict[int, list[ir.Instruction]] = defaultdict(list)
    for item in row:
        if isinstance(item, ir.Receive):
            at = last[item.tensor]
            if isinstance(row[at], ir.Compute):
                at = after_sends(row, at)
            frees[at].append(ir.Free(item.tensor))
    return inserted(row, frees)


def _last_uses(row: Row, before: dict[ir.Tensor, ir.Tensor]) -> dict[ir.Tensor, int]:
    """For each received tensor, the index of its last use among a rank's instructions.

    The wait for a tensor counts as a use. ``before``: the result of
    :func:`.place_messages.taken_on`.
    """
    last: dict[ir.Tensor, int] = {}
    here: dict[int, ir.Tensor] = {}  # by stage: the weights that arrived last
    for i, item in enumerate(row):
        if isinstance(item, ir.WaitReceive):
            last[item.tensor] = i
            if item.tensor.kind is ir.TensorKind.WEIGHT:
                here[item.tensor.stage] = item.tensor
        elif isinstance(item, ir.WaitSend) and item.tensor in before:
            last[before[item.tensor]] = i
        elif isinstance(item, ir.Compute):
            last |= {tensor: i for tensor in _read(item.op, here) if tensor in last}
    return last


def _read(op: Op, here: dict[int, ir.Tensor]) -> list[ir.Tensor]:
    """The tensors that ``op`` reads, of those that ranks can receive.

    An F, B or BW reads its stage's weights, and a W or BW reads x and dy. ``here``: by stage, the
    weights that arrived last; a stage whose weights are not received has no entry.
    """
    weights = [here[op.stage]] if op.kind is not OpKind.W and op.stage in here else []
    if op.kind not in (OpKind.W, OpKind.BW):
        return weights
    pair = (ir.TensorKind.X, ir.TensorKind.DY)
    return [*weights, *(ir.Tensor(kind, op.stage, op.microbatch) for kind in pair)]


def share_buffers(program: Program) -> Program:
    """Give each receive a buffer that is free, or a new buffer if no suitable one is free.

    A buffer for activations is only for one kind of tensor and one stage. A buffer for weights or
    for their gradients is for all stages, and is named after the largest of those that use it. A
    buffer is in use from the posting of a receive to the free of its tensor. The number of buffers
    is minimal: if an n-th buffer for one use is created, the n - 1 others are in use, so that n
    tensors are held at that point of the program.
    """
    stages = program.schedule.problem.profile.stages
    sizes = [stage.weight_bytes or 0.0 for stage in stages]
    shared = [_shared(row, sizes) for row in program.instructions]
    return replace(
        program,
        instructions=tuple(row for row, _ in shared),
        buffers=tuple(buffers for _, buffers in shared),
    )


def _shared(row: Row, sizes: list[float]) -> tuple[Row, tuple[ir.Buffer, ...]]:
    buffers: list[ir.Buffer] = []
    idle: dict[ir.Buffer | ir.TensorKind, list[int]] = defaultdict(list)
    taken: dict[ir.Tensor, int] = {}
    renumbered: list[ir.Instruction] = []
    for item in row:
        if isinstance(item, ir.Receive):
            tensor, pool = item.tensor, idle[_use(item.tensor)]
            if not pool:
                pool.append(len(buffers))
                buffers.append(ir.Buffer(tensor.kind, tensor.stage))
            at = taken[tensor] = pool.pop()
            if sizes[tensor.stage] > sizes[buffers[at].stage]:
                buffers[at] = ir.Buffer(tensor.kind, tensor.stage)
            renumbered.append(ir.Receive(tensor, item.source, at))
            continue
        if isinstance(item, ir.Free):
            idle[_use(item.tensor)].append(taken.pop(item.tensor))
        renumbered.append(item)
    return tuple(renumbered), tuple(buffers)


def _use(tensor: ir.Tensor) -> ir.Buffer | ir.TensorKind:
    """The key of a pool of buffers: tensors with the same key can use the same buffers."""
    if tensor.kind in (ir.TensorKind.WEIGHT, ir.TensorKind.GRADIENT):
        return tensor.kind
    return ir.Buffer(tensor.kind, tensor.stage)
