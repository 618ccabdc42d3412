"""When received tensors are no longer needed."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from pipeloom.ir.model.ops import Op, OpKind
from pipeloom.ir.model.program import (
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
