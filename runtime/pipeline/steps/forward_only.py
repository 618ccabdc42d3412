"""Forward only: of a program's instructions, those that its F's need.

::

    1F1B, rank 1  recv x1.0  wait x1.0  1F0  send x2.0  recv dy1.0  ...  1BW0  send dy0.0  free x1.0
    forwards      recv x1.0  wait x1.0  1F0  send x2.0                                     free x1.0

Kept are F's, the messages of their inputs, and the weight transfers that bring the weights of some
F, hop by hop from the owner. A message is kept or left out whole: its send, its receive, both waits
and its free.

**It cannot deadlock where the program cannot.** A program deadlocks only by a cycle in the graph of
its instructions, with an edge from each to the next one of its rank and from each send and receive
to both waits of its message (``compiler/passes/deadlock_check.py``). What is kept of a rank stands
in the program's order, so that an edge along a rank stands for a path in the program's graph, and
the edges of a kept message are the program's own: a cycle here would be one there. The receives of
a channel stay in the order of its sends, as both have lost the same messages. Rounds one after the
other add edges from each to the next one only.

**Buffers.** A buffer is received into once the free of what it held has come before in the
program's order; that free is kept with its message. So no more is live than in the program.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pipeloom.ir.model import program as ir
from pipeloom.ir.model.ops import OpKind
from pipeloom.ir.model.program import Program
from pipeloom.ir.model.transfers import previous


def forward_only(program: Program, microbatches: int) -> Program:
    """``program`` cut down to the forwards of its first ``microbatches``, with their buffers."""
    wanted = _weights(program, microbatches)
    rows = [
        [item for item in row if _kept(item, microbatches, wanted)] for row in program.instructions
    ]
    pairs = [_packed(row, buffers) for row, buffers in zip(rows, program.buffers, strict=True)]
    return replace(
        program,
        instructions=tuple(row for row, _ in pairs),
        buffers=tuple(buffers for _, buffers in pairs),
    )


def _kept(item: ir.Instruction, microbatches: int, wanted: set[int]) -> bool:
    if isinstance(item, ir.Compute):
        return item.op.kind is OpKind.F and item.op.microbatch < microbatches
    if not isinstance(item, ir.Send | ir.Receive | ir.WaitSend | ir.WaitReceive | ir.Free):
        return False
    tensor = item.tensor
    if tensor.kind is ir.TensorKind.X:
        return tensor.index < microbatches
    return tensor.kind is ir.TensorKind.WEIGHT and tensor.index in wanted


def _weights(program: Program, microbatches: int) -> set[int]:
    """The transfers that bring weights to some F: the last that came before it, and its way."""
    earlier = previous(program.schedule.transfers)
    wanted: set[int] = set()
    for row in program.instructions:
        for transfer in _used(row, microbatches):
            at: int | None = transfer
            while at is not None and at not in wanted:
                wanted.add(at)
                at = earlier[at]
    return wanted


def _used(row: Sequence[ir.Instruction], microbatches: int) -> Iterator[int]:
    """The weight transfers of one rank whose copies F's compute with."""
    came: dict[int, int] = {}  # by stage
    for item in row:
        if isinstance(item, ir.WaitReceive) and item.tensor.kind is ir.TensorKind.WEIGHT:
            came[item.tensor.stage] = item.tensor.index
        if isinstance(item, ir.Compute) and _kept(item, microbatches, set()):
            yield from (came[s] for s in came.keys() & {item.op.stage})


def _packed(
    row: Sequence[ir.Instruction], buffers: Sequence[ir.Buffer]
) -> tuple[tuple[ir.Instruction, ...], tuple[ir.Buffer, ...]]:
    """The row and its buffers, without those that nothing is received into."""
    used = sorted({item.buffer for item in row if isinstance(item, ir.Receive)})
    at = {buffer: i for i, buffer in enumerate(used)}
    renumbered = tuple(
        replace(item, buffer=at[item.buffer]) if isinstance(item, ir.Receive) else item
        for item in row
    )
    return renumbered, tuple(buffers[i] for i in used)
