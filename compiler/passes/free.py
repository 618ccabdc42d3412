"""When received tensors are no longer needed."""

from __future__ import annotations

from dataclasses import replace

from pipeloom.ir.ops import OpKind
from pipeloom.ir.program import Compute, Free, Instruction, Program, Receive, Tensor, TensorKind

from .rows import BLOCKING, Row, insert_before, joined, segments


def free_received(program: Program) -> Program:
    """Frees a microbatch's input and output gradient once its weight gradient is done.

    Deferred weight gradients read both: dW is a product of the input and the output gradient.
    """
    return replace(program, instructions=tuple(map(_with_frees, program.instructions)))


def _with_frees(row: Row) -> Row:
    received = {item.tensor for item in row if isinstance(item, Receive)}
    cut = segments(row)
    for i, segment in enumerate(cut[1:], start=1):
        done = _done_with(segment[0])
        frees = [Free(tensor) for tensor in done if tensor in received]
        if frees:
            cut[i] = insert_before(segment, BLOCKING, frees)
    return joined(cut)


def _done_with(item: Instruction) -> tuple[Tensor, ...]:
    """The tensors that nothing needs once ``item``, a compute, has run."""
    if not isinstance(item, Compute) or item.op.kind not in (OpKind.W, OpKind.BW):
        return ()
    s, j = item.op.stage, item.op.microbatch
    return Tensor(TensorKind.X, s, j), Tensor(TensorKind.DY, s, j)
