"""Prepares the argument-free calls of each instruction of a rank, once for all steps.

::

    1F0; send x2.0 to 2; ...   ->   [[timed(partial(runner.forward, cell))], [message.post], ...]

All lookups are done here, so that a step runs few calls with few Python frames each.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pipeloom.ir.model import program as ir
from pipeloom.ir.model.ops import Op, OpKind

from ..measure.memory import Turns
from ..measure.op_timer import Call
from ..rank.context import RankContext
from ..tensors.stage_interface import StageInterface
from ..transport.posted import RepeatedMessage, receiving, sending
from .messages import pass_gradient, pass_output
from .pacing import paced
from .remat_ops import calls
from .speculative_rerun import SpeculativeRerun
from .stage_runner import Cell
from .tensor_routing import routes

if TYPE_CHECKING:
    from .executor import Executor


class InstructionCalls:
    """Creates the calls that run the instructions of one rank, in the order of its program.

    The attributes describe the state after the instructions for which calls were created so far.
    ``under_way``: messages that are posted but not yet waited for, by the type (``WaitSend`` or
    ``WaitReceive``) and tensor of the wait. ``received``: for each received tensor that is not yet
    freed, the part of the receive buffer that contains it. ``receives``: the message of each
    received tensor, freed or not.
    """

    def __init__(
        self,
        executor: Executor,
        context: RankContext,
        cells: Mapping[tuple[int, int], Cell],
        interfaces: Sequence[Sequence[StageInterface]],
    ) -> None:
        self.executor, self._cells = executor, cells
        self._transport, self._memory = context.transport, context.memory
        self._routing = routes(context, cells, interfaces)
        sizes: defaultdict[int, int] = defaultdict(int)
        for item in executor.row:
            if isinstance(item, ir.Receive):
                size = self._routing[item.tensor.kind].message(item.tensor).nbytes
                sizes[item.buffer] = max(size, sizes[item.buffer])
        self._buffers = {
            buffer: torch.empty(size, dtype=torch.uint8, device=context.device)
            for buffer, size in sizes.items()
        }
        self._stretched = paced(context)
        self._marks = 0
        self.under_way: dict[tuple[type, ir.Tensor], RepeatedMessage] = {}
        self.received: dict[ir.Tensor, Tensor] = {}
        self.receives: dict[ir.Tensor, RepeatedMessage] = {}

    def of(self, instruction: ir.Instruction) -> Sequence[Call]:
        """Returns the calls that run ``instruction``.

        Must be called for each instruction of the rank once, in program order.
        """
        return _MAKERS[type(instruction)](self, instruction)

    def _receive(self, receive: ir.Receive) -> Sequence[Call]:
        tensor = receive.tensor
        place = self._routing[tensor.kind].message(tensor).place(self._buffers[receive.buffer])
        self.received[tensor] = place
        message = receiving(self._transport, place, receive.source)
        self.under_way[ir.WaitReceive, tensor] = self.receives[tensor] = message
        return _present(message.post, self.turns(tensor, place)[0])

    def _send(self, send: ir.Send) -> Sequence[Call]:
        take = self._routing[send.tensor.kind].taking(send.tensor)
        message = sending(self._transport, take, send.target)
        self.under_way[ir.WaitSend, send.tensor] = message
        return [message.post]

    def _wait_receive(self, wait: ir.WaitReceive) -> Sequence[Call]:
        tensor = wait.tensor
        give = self._routing[tensor.kind].giving(tensor, self.received[tensor])
        return _present(self.under_way.pop((ir.WaitReceive, tensor)).wait, give)

    def _wait_send(self, wait: ir.WaitSend) -> Sequence[Call]:
        return [self.under_way.pop((ir.WaitSend, wait.tensor)).wait]

    def _freeing(self, free: ir.Free) -> Sequence[Call]:
        place = self.received.pop(free.tensor)
        return _present(self.turns(free.tensor, place)[1], self._transport.releasing(place))

    def turns(self, tensor: ir.Tensor, place: Tensor) -> Turns | tuple[None, None]:
        """Returns the calls that start and stop counting the bytes of ``tensor`` in the ledger.

        ``place``: the part of a receive buffer that contains it. Returns (None, None) for weights
        and their gradients, or if activations are not counted.
        """
        counts = tensor.kind in (ir.TensorKind.X, ir.TensorKind.DY)
        return (self._memory.turns(place) if counts else None) or (None, None)

    def _compute(self, compute: ir.Compute) -> Sequence[Call]:
        op = compute.op
        cell = self._cells[op.stage, op.microbatch]
        run: Call = partial(calls(self.executor.runners[op.stage], op.kind, cell), cell)
        timed = self.executor.clock.timed(self._stretched(run, op), self._marks)
        self._marks += 2
        return [timed, *self._hand_over(op, cell)]

    def _hand_over(self, op: Op, cell: Cell) -> Sequence[Call]:
        """Returns the calls that move an op's result to a neighboring stage on this rank.

        For F, that is the next stage; for B and BW, the previous one. Returns an empty list for
        other ops, and if the neighboring stage runs on another rank or does not exist.
        """
        if op.kind is OpKind.F:
            target, hand_over = (op.stage + 1, op.microbatch), pass_output
        elif op.kind in (OpKind.B, OpKind.BW):
            target, hand_over = (op.stage - 1, op.microbatch), pass_gradient
        else:
            return []
        return [partial(hand_over, cell, self._cells[target])] if target in self._cells else []

    def _relay(self, relay: ir.Relay) -> Sequence[Call]:
        if relay.kind is ir.RelayKind.SUMS:
            return [self.executor.step_end.check_norm]
        return [SpeculativeRerun(self)]


def _present(*calls: Call | None) -> list[Call]:
    return [call for call in calls if call is not None]


_MAKERS: dict[type, Callable[[InstructionCalls, Any], Sequence[Call]]] = {
    ir.Compute: InstructionCalls._compute,
    ir.Receive: InstructionCalls._receive,
    ir.Send: InstructionCalls._send,
    ir.WaitReceive: InstructionCalls._wait_receive,
    ir.WaitSend: InstructionCalls._wait_send,
    ir.Free: InstructionCalls._freeing,
    ir.Reduce: lambda made, reduce: [made.executor.step_end.reduce(reduce.stages)],
    ir.Average: lambda made, average: [made.executor.step_end.average(average.stage)],
    ir.Step: lambda made, step: [made.executor.step_end.step(step.stage)],
    ir.Relay: InstructionCalls._relay,
}
