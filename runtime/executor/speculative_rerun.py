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

from ..measure.op_timer import Call
from ..transport.posted import RepeatedMessage

if TYPE_CHECKING:
    from ..optim.step_end import StepEnd


class SpeculativeRerun:
    """The call of a ``relay verdict``: ``step_end`` says whether the ops before it run again, and
    restores what they began with.

    ``posted``: messages of these ops that are not waited for by then; ``releases``: of the
    buffers that the ledger counts by then. ``calls`` and ``stale`` (the receives to be forgotten)
    are known once the whole row is prepared.
    """

    def __init__(
        self, step_end: StepEnd, posted: Sequence[RepeatedMessage], releases: Sequence[Call]
    ) -> None:
        self._step_end, self._posted, self._releases = step_end, posted, releases
        self.calls: Sequence[Call] = ()
        self.stale: Sequence[RepeatedMessage] = ()

    def __call__(self) -> None:
        if not self._step_end.validate():
            return
        for message in self.stale:
            message.post()
        for message in (*self._posted, *self.stale):
            message.wait()
        for release in self._releases:
            release()
        self._step_end.restore_snapshot()
        for call in self.calls:
            call()


def stale(program: ir.Program, rank: int) -> list[ir.Tensor]:
    """Tensors that come to ``rank`` after its verdict but are sent before the sender's, in
    order."""
    early = {
        item.tensor
        for row in program.instructions
        for item in row[: verdict(row)]
        if isinstance(item, ir.Send)
    }
    row = program.instructions[rank]
    late = (item for item in row[verdict(row) :] if isinstance(item, ir.Receive))
    return [item.tensor for item in late if item.tensor in early]


def verdict(row: Sequence[ir.Instruction]) -> int:
    """The place of the verdict in the row; 0 where it has none."""
    relays = (i for i, x in enumerate(row) if isinstance(x, ir.Relay) and x.kind is VERDICT)
    return next(relays, 0)


VERDICT = ir.RelayKind.VERDICT
