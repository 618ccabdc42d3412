"""One rank's instructions, prepared once into a list of calls and run again every step.

::

    prepare:  1F0; send x2.0 to 2; ...   ->   [partial(runner.forward, cell), partial(send, ...)]
    step:     for call in calls: call()

Where ops are short this is the runtime's cost, and most of it is code that left the caches while
an op ran: an instruction becomes few calls of few frames, and what can be looked up is, once.

In a step that torch's profiler watches, each instruction runs under its own text (``2F0``,
``send x2.0 to 2``; in an evaluation ``eval 2F0``), which Kineto's traces, HTA and, by
``emit_nvtx``, Nsight show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pipeloom.ir.model import program as ir
from pipeloom.ir.model.ops import Op, OpKind

from ..device import Device
from ..measure.memory import Turns
from ..measure.op_timer import Call, Clock, make_clock
from ..rank.context import RankContext
from ..tensors.receive_buffers import ReceiveBuffers
from ..tensors.stage_interface import StageInterface
from ..transport.posted import RepeatedMessage, receiving, sending
from .instructions_seen import failed, under_texts
from .messages import pass_gradient, pass_output
from .pacing import paced
from .remat_ops import calls
from .speculative_rerun import SpeculativeRerun
from .stage_runner import Cell, StageRunner
from .tensor_routing import routes

if TYPE_CHECKING:
    from ..optim.step_end import StepEnd


class Executor:
    """Runs one rank of its context's program.

    ``runners`` and ``cells`` are those of the (stage, microbatch) pairs of this rank;
    ``interfaces`` are what stages hand on. ``step_end`` makes the calls for reduce, average, step
    and the relays; after a verdict ops may be run again (:mod:`.speculative_rerun`). ``label``
    comes before each text in the profiler's trace.
    """

    def __init__(
        self,
        context: RankContext,
        step_end: StepEnd,
        cells: Mapping[tuple[int, int], Cell],
        runners: Mapping[int, StageRunner],
        interfaces: Sequence[Sequence[StageInterface]],
        *,
        label: str = "",
    ) -> None:
        self.program, rank = context.program, context.transport.rank
        self.transport, self._memory, self._label = context.transport, context.memory, label
        self._cells, self.runners, self.step_end = cells, runners, step_end
        self._routing = routes(context, cells, interfaces)
        self.row = self.program.instructions[rank]
        given = context.buffers or ReceiveBuffers(context.device)
        self._buffers = [
            given.take(place, self._routing[buffer.kind].spec(buffer.kind, buffer.stage))
            for place, buffer in enumerate(self.program.buffers[rank])
        ]
        self.ops: list[Op] = [i.op for i in self.row if isinstance(i, ir.Compute)]
        self._stretched = paced(context)
        self.clock: Clock = make_clock(2 * len(self.ops), context.device)
        self._anchors = not Device(context.device).is_host  # else the clock needs no start
        self._marks = 0
        self.under_way: dict[tuple[type, ir.Tensor], RepeatedMessage] = {}
        self.received: dict[ir.Tensor, Tensor] = {}
        self.receives: dict[ir.Tensor, RepeatedMessage] = {}
        self._prepared = [_MAKERS[type(each)](self, each) for each in self.row]
        self.calls = [call for calls in self._prepared for call in calls]
        self._positions = [at for at, calls in enumerate(self._prepared) for _ in calls]

    def run(self) -> None:
        """Runs one step. Raises ExecutionError naming the instruction that failed, InputError where
        what it was given is to blame."""
        calls, positions, index = self.calls, self._positions, 0
        if self._anchors:
            self.clock.start()
        if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
            calls, positions = under_texts(self.row, self._prepared, self._label)
        try:
            for index, call in enumerate(calls):  # noqa: B007
                call()
        except Exception as error:
            raise failed(self, positions[index], error) from error

    def _receive(self, receive: ir.Receive) -> Sequence[Call]:
        tensor = receive.tensor
        place = self._routing[tensor.kind].fitting(tensor, self._buffers[receive.buffer])
        self.received[tensor] = place
        message = receiving(self.transport, place, receive.source)
        self.under_way[ir.WaitReceive, tensor] = self.receives[tensor] = message
        return _present(message.post, self.turns(tensor, place)[0])

    def _send(self, send: ir.Send) -> Sequence[Call]:
        take = self._routing[send.tensor.kind].taking(send.tensor)
        message = sending(self.transport, take, send.target)
        self.under_way[ir.WaitSend, send.tensor] = message
        return [message.post]

    def _wait_receive(self, wait: ir.WaitReceive) -> Sequence[Call]:
        tensor = wait.tensor
        give = self._routing[tensor.kind].giving(tensor, self.received[tensor])
        return [self.under_way.pop((ir.WaitReceive, tensor)).wait, give]

    def _wait_send(self, wait: ir.WaitSend) -> Sequence[Call]:
        return [self.under_way.pop((ir.WaitSend, wait.tensor)).wait]

    def _freeing(self, free: ir.Free) -> Sequence[Call]:
        place = self.received.pop(free.tensor)
        return _present(self.turns(free.tensor, place)[1], self.transport.releasing(place))

    def turns(self, tensor: ir.Tensor, place: Tensor) -> Turns | tuple[None, None]:
        """The calls that count a tensor of activations; none for weights and their gradients."""
        counts = tensor.kind in (ir.TensorKind.X, ir.TensorKind.DY)
        return (self._memory.turns(place) if counts else None) or (None, None)

    def _compute(self, compute: ir.Compute) -> Sequence[Call]:
        op = compute.op
        cell = self._cells[op.stage, op.microbatch]
        run: Call = partial(calls(self.runners[op.stage], op.kind, cell), cell)
        timed = self.clock.timed(self._stretched(run, op), self._marks)
        self._marks += 2
        return [timed, *self._hand_over(op, cell)]

    def _hand_over(self, op: Op, cell: Cell) -> Sequence[Call]:
        """Passes the result on where its next stage runs on this rank, too."""
        if op.kind is OpKind.F:
            target, hand_over = (op.stage + 1, op.microbatch), pass_output
        elif op.kind in (OpKind.B, OpKind.BW):
            target, hand_over = (op.stage - 1, op.microbatch), pass_gradient
        else:
            return []
        return [partial(hand_over, cell, self._cells[target])] if target in self._cells else []


def _present(*calls: Call | None) -> list[Call]:
    return [call for call in calls if call is not None]


_MAKERS: dict[type, Callable[[Executor, Any], Sequence[Call]]] = {
    ir.Compute: Executor._compute,
    ir.Receive: Executor._receive,
    ir.Send: Executor._send,
    ir.WaitReceive: Executor._wait_receive,
    ir.WaitSend: Executor._wait_send,
    ir.Free: Executor._freeing,
    ir.Reduce: lambda executor, reduce: [executor.step_end.reduce(reduce.stages)],
    ir.Average: lambda executor, average: [executor.step_end.average(average.stage)],
    ir.Step: lambda executor, step: [executor.step_end.step(step.stage)],
    ir.Relay: lambda executor, relay: [
        executor.step_end.check_norm
        if relay.kind is ir.RelayKind.SUMS
        else SpeculativeRerun(executor)
    ],
}
