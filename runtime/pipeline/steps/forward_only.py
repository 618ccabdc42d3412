"""Forward-only programs: the subset of a program's instructions that its F's need.

::

    1F1B, rank 1  recv x1.0  wait x1.0  1F0  send x2.0  recv dy1.0  ...  1BW0  send dy0.0  free x1.0
    forwards      recv x1.0  wait x1.0  1F0  send x2.0                                     free x1.0

The subset consists of the F's, the messages with their inputs, and the transfers through which the
weights of an F come from the owner, hop by hop. A message is kept or removed as a whole: send,
receive, both waits and free.

**It does not deadlock if the program does not.** A program deadlocks only if there is a cycle in
the graph of its instructions. The graph has an edge from each instruction to the next one on its
rank, and from each send and receive to both waits of the message
(``compiler/passes/deadlock_check.py``). The kept instructions of a rank are in the program's order,
so an edge between two of them corresponds to a path in the program's graph; the edges of a kept
message are in that graph as well. So a cycle in the subset's graph would imply a cycle in the
program's graph. The receives between two ranks remain in the order of the sends, as the same
messages are removed from both.

**Buffers.** Before a buffer is received into, the program frees its previous content; that free is
kept with its message. So no more buffers are live at a time than in the program. Buffers that the
subset does not use are never allocated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from pipeloom.ir.model import program as ir
from pipeloom.ir.model.ops import OpKind
from pipeloom.ir.model.program import Program
from pipeloom.ir.model.transfers import previous


def forward_only(program: Program) -> Program:
    """Returns ``program`` with only the instructions that its F's need."""
    wanted = _weights(program)
    rows = (tuple(item for item in row if _is_kept(item, wanted)) for row in program.instructions)
    return replace(program, instructions=tuple(rows))


def _is_kept(item: ir.Instruction, wanted: set[int]) -> bool:
    if isinstance(item, ir.Compute):
        return item.op.kind is OpKind.F
    if not isinstance(item, ir.Send | ir.Receive | ir.WaitSend | ir.WaitReceive | ir.Free):
        return False
    tensor = item.tensor
    return tensor.kind is ir.TensorKind.X or (
        tensor.kind is ir.TensorKind.WEIGHT and tensor.index in wanted
    )


def _weights(program: Program) -> set[int]:
    """Returns the indices of the weight transfers that the F's need.

    For each F, these are the last transfer of its weights to its rank before it, and the earlier
    hops of the same weights from their owner.
    """
    earlier = previous(program.schedule.transfers)
    wanted: set[int] = set()
    for row in program.instructions:
        for transfer in _used(row):
            at: int | None = transfer
            while at is not None and at not in wanted:
                wanted.add(at)
                at = earlier[at]
    return wanted


def _used(row: Sequence[ir.Instruction]) -> Iterator[int]:
    """Yields the index of the weight transfer that last arrived before each F of a rank's ``row``.

    Covers only those F's whose weights were received.
    """
    came: dict[int, int] = {}  # stage -> the transfer that arrived last
    for item in row:
        if isinstance(item, ir.WaitReceive) and item.tensor.kind is ir.TensorKind.WEIGHT:
            came[item.tensor.stage] = item.tensor.index
        if isinstance(item, ir.Compute) and item.op.kind is OpKind.F:
            yield from (came[s] for s in came.keys() & {item.op.stage})
