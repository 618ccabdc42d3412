"""Repeats the first ops of a step if the optimizer step before them was wrong.

With post-validation, a rank steps its optimizers and starts the next step's ops before the norm of
all ranks' gradients is known. The *verdict*, a ``relay verdict`` instruction among these ops, waits
for the norm. If it is above its limit or not finite, the optimizer step was wrong: it is corrected,
and the ops before the verdict are repeated with the right weights.

::

    rank 0   0F0 0F1 0F2 verdict │ 0F0 0F1 0F2 0B0 ...
                 └ x ─┐   └ x ─┐ │
    rank 1        1F0 verdict  ▼ │  1F0 1B0 ...
                      received and discarded

When a rank reaches its verdict, it has already sent messages, some of which the receiving rank
would only receive after its own verdict. There, it would mistake them for the messages of the
repeated ops. So the receiving rank first receives these messages into their buffers and ignores
them. Then it waits for all messages that it has posted, and repeats the ops up to the verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeloom.ir.model import program as ir

if TYPE_CHECKING:
    from .instruction_calls import InstructionCalls


class SpeculativeRerun:
    """The call of a ``relay verdict``, which repeats the ops before it if the last step was wrong.

    ``StepEnd`` determines whether the step was wrong and restores the state from before the ops.
    This object is created when the instruction is prepared. It then records the messages that are
    posted but not yet waited for, and the receive buffers that the ledger counts, at the
    instruction's position.
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
    """Returns the tensors sent before the sender's verdict that ``rank`` receives after its own.

    In the sender's instructions, the send is before the ``relay verdict``; in the instructions of
    ``rank``, the receive is after it. The tensors are in the order in which ``rank`` receives them.
    """
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
    """Returns the index of the ``relay verdict`` in a rank's instructions; 0 if there is none."""
    relays = ((i, item) for i, item in enumerate(row) if isinstance(item, ir.Relay))
    return next((i for i, relay in relays if relay.kind is ir.RelayKind.VERDICT), 0)
