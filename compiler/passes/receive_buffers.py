"""Frees received tensors after their last use, and shares receive buffers."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from pipeloom.ir.model import program as ir
from pipeloom.ir.model.ops import Op, OpKind
from pipeloom.ir.model.program import Program

from .place_messages import taken_on
from .segments import Row, after_sends, inserted


def free_received(program: Program) -> Program:
    """Free each received tensor after its last use.

    Deferred weight gradients read the microbatch's input and output gradient (dW is a product of
    the two), which are therefore freed after the weight gradient. Weights and gradients are freed
    when they have been sent on and no op uses them: an op uses the copy of its weights that was
    waited for last, and a gradient that has arrived at its owner is added when it is waited for.
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
    """The index of the last use of each received tensor in a rank's row; a wait for it is a use."""
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
    """The received tensors that an op reads: its weights, and for weight gradients x and dy."""
    weights = [here[op.stage]] if op.kind is not OpKind.W and op.stage in here else []
    if op.kind not in (OpKind.W, OpKind.BW):
        return weights
    pair = (ir.TensorKind.X, ir.TensorKind.DY)
    return [*weights, *(ir.Tensor(kind, op.stage, op.microbatch) for kind in pair)]


def share_buffers(program: Program) -> Program:
    """Give each receive a free buffer, and create a new one only if there is none.

    A buffer for activations serves one kind and stage. A buffer for weights or for gradients serves
    all stages, and is named after the largest of them. It is in use from the posting of the receive
    to the free of the tensor. The number of buffers is minimal: when the n-th buffer of a use is
    created, the n - 1 others are in use, so that n tensors are live at that point of the program.
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
    """The key under which tensors share buffers."""
    if tensor.kind in (ir.TensorKind.WEIGHT, ir.TensorKind.GRADIENT):
        return tensor.kind
    return ir.Buffer(tensor.kind, tensor.stage)
