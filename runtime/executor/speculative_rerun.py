"""The ops that a rank runs before it knows the norm of its last step; run again where that was
above its limit or not finite.

::

    rank 0   0F0 0F1 0F2 verdict │ 0F0 0F1 0F2 0B0 ...
                 └ x ─┐   └ x ─┐ │
    rank 1        1F0 verdict  ▼ │  1F0 1B0 ...
                      received, and forgotten

A rank's messages before its verdict have all been sent once it is there. What the receiver takes
in after its own verdict is in the way of what is sent anew, so it is received first, into the
buffers that it is meant for. All that is posted is waited for; then the ops up to the verdict run
as if for the first time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeloom.ir.model import program as ir

if TYPE_CHECKING:
    from .instruction_calls import InstructionCalls


class SpeculativeRerun:
    """The call of a ``relay verdict``: the step's end knows whether the ops before it run again,
    and restores what they began with.

    It is made when the instruction is prepared, and knows what is under way there: messages that
    are not waited for yet, and buffers that the ledger counts.
    """

    def __init__(self, made: InstructionCalls) -> None:
        self._executor, self._receives = made.executor, made.receives
        self._posted = [*made.under_way.values()]
        turns = [made.turns(tensor, place) for tensor, place in made.received.items()]
        self._releases = [release for _, release in turns if release is not None]

    def __call__(self) -> None:
        executor, step_end = self._executor, self._executor.step_end
        if not step_end.pending:
            return
        again = step_end.validate()
        step_end.clear_gradients()
        if not again:
            return
        late = [self._receives[t] for t in stale(executor.program, executor.rank)]
        for message in late:
            message.post()
        for message in (*self._posted, *late):
            message.wait()
        for release in self._releases:
            release()
        step_end.restore()
        for call in executor.calls[: executor.calls.index(self)]:
            call()


def stale(program: ir.Program, rank: int) -> list[ir.Tensor]:
    """Tensors that come to ``rank`` after its verdict but are sent before the sender's, in
    order."""
    early = {
        item.tensor
        for row in program.instructions
        for item in row[: _verdict(row)]
        if isinstance(item, ir.Send)
    }
    row = program.instructions[rank]
    late = (item for item in row[_verdict(row) :] if isinstance(item, ir.Receive))
    return [item.tensor for item in late if item.tensor in early]


def _verdict(row: Sequence[ir.Instruction]) -> int:
    """The place of the verdict in the row; 0 where it has none."""
    relays = ((i, item) for i, item in enumerate(row) if isinstance(item, ir.Relay))
    return next((i for i, relay in relays if relay.kind is ir.RelayKind.VERDICT), 0)
