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

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pipeloom.ir.cost.cost_tables import Costs
from pipeloom.ir.errors import InputError
from pipeloom.ir.model import program as ir
from pipeloom.ir.model.ops import Op, OpKind, pack
from pipeloom.ir.units import counted

from ..errors import ExecutionError, advice
from ..measure.activation_ledger import Turns
from ..measure.op_timer import Call, Clock, make_clock
from ..rank.context import RankContext
from ..tensors.receive_buffers import ReceiveBuffers
from ..transport.posted import RepeatedMessage, receiving, sending
from .remat_ops import calls
from .speculative_rerun import SpeculativeRerun, stale
from .stage_runner import Cell, StageRunner
from .tensor_routing import TensorRouting, pass_gradient, pass_output

if TYPE_CHECKING:
    from ..optim.step_end import StepEnd


class Executor:
    """Runs one rank of its context's program.

    ``runners`` and ``cells`` are those of the (stage, microbatch) pairs of this rank; ``routing``
    finds the tensors of each kind. ``step_end`` makes the calls for reduce, average, step and the
    relays; after a verdict ops may be run again (:mod:`.speculative_rerun`). ``label`` comes before
    each text in the profiler's trace.
    """

    def __init__(
        self,
        context: RankContext,
        *,
        cells: Mapping[tuple[int, int], Cell],
        runners: Mapping[int, StageRunner],
        routing: Mapping[ir.TensorKind, TensorRouting],
        step_end: StepEnd,
        label: str,
    ) -> None:
        program, transport, device = context.program, context.transport, context.device
        self._paced = Costs.of(program.schedule.problem) if context.options.pace else None
        self._transport, self._memory, self._label = transport, context.memory, label
        self._cells, self._runners, self._routing = cells, runners, routing
        self._step_end = step_end
        self._row = program.instructions[transport.rank]
        given = context.buffers or ReceiveBuffers(device)
        self._buffers = [
            given.take(place, routing[buffer.kind].spec(buffer.kind, buffer.stage))
            for place, buffer in enumerate(program.buffers[transport.rank])
        ]
        self.ops: list[Op] = [i.op for i in self._row if isinstance(i, ir.Compute)]
        self.clock: Clock = make_clock(2 * len(self.ops), device)
        self._marks = 0
        self._under_way: dict[tuple[type, ir.Tensor], RepeatedMessage] = {}
        self._received: dict[ir.Tensor, Tensor] = {}
        self._receives: dict[ir.Tensor, RepeatedMessage] = {}
        self._rerun: SpeculativeRerun | None = None
        prepared = [_MAKERS[type(each)](self, each) for each in self._row]
        self._prepared = prepared
        self._calls = [call for calls in prepared for call in calls]
        self._positions = [at for at, calls in enumerate(prepared) for _ in calls]
        if self._rerun is not None:
            self._rerun.calls = self._calls[: self._calls.index(self._rerun)]
            self._rerun.stale = [self._receives[t] for t in stale(program, transport.rank)]

    def run(self) -> None:
        """Runs one step. Raises ExecutionError naming the instruction that failed, InputError where
        what it was given is to blame."""
        self.clock.start()
        calls, positions, index = self._calls, self._positions, 0
        if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
            calls, positions = self._named(), list(range(len(self._row)))
        try:
            for index, call in enumerate(calls):  # noqa: B007
                call()
        except InputError as error:
            raise InputError(f"{self._where(positions[index])}: {error}") from error
        except Exception as error:
            told = f"{type(error).__name__}: {error}{advice(error)}"
            raise ExecutionError(f"{self._where(positions[index])}: {told}") from error

    def _named(self) -> list[Call]:
        """The call of an instruction, under its text in the profiler's trace."""
        pairs = zip(self._row, self._prepared, strict=True)
        return [
            partial(_under, f"{self._label}{instruction}", calls) for instruction, calls in pairs
        ]

    def _receive(self, receive: ir.Receive) -> Sequence[Call]:
        tensor = receive.tensor
        place = self._routing[tensor.kind].fitting(tensor, self._buffers[receive.buffer])
        self._received[tensor] = place
        message = receiving(self._transport, place, receive.source)
        self._under_way[ir.WaitReceive, tensor] = self._receives[tensor] = message
        return _present(self._turns(tensor, place)[0], message.post)

    def _send(self, send: ir.Send) -> Sequence[Call]:
        take = self._routing[send.tensor.kind].taking(send.tensor)
        message = sending(self._transport, take, send.target)
        self._under_way[ir.WaitSend, send.tensor] = message
        return [message.post]

    def _wait_receive(self, wait: ir.WaitReceive) -> Sequence[Call]:
        tensor = wait.tensor
        give = self._routing[tensor.kind].giving(tensor, self._received[tensor])
        return [self._under_way.pop((ir.WaitReceive, tensor)).wait, give]

    def _wait_send(self, wait: ir.WaitSend) -> Sequence[Call]:
        return [self._under_way.pop((ir.WaitSend, wait.tensor)).wait]

    def _freeing(self, free: ir.Free) -> Sequence[Call]:
        place = self._received.pop(free.tensor)
        return _present(self._turns(free.tensor, place)[1], self._transport.releasing(place))

    def _turns(self, tensor: ir.Tensor, place: Tensor) -> Turns | tuple[None, None]:
        """The calls that count a tensor of activations; none for weights and their gradients."""
        counts = tensor.kind in (ir.TensorKind.X, ir.TensorKind.DY)
        return (self._memory.turns(place) if counts else None) or (None, None)

    def _relaying(self, relay: ir.Relay) -> Sequence[Call]:
        if relay.kind is ir.RelayKind.SUMS:
            return [self._step_end.check_norm]
        held = [self._turns(tensor, place) for tensor, place in self._received.items()]
        releases = _present(*(release for _, release in held))
        posted = list(self._under_way.values())
        self._rerun = SpeculativeRerun(self._step_end, posted, releases)
        return [self._rerun]

    def _compute(self, compute: ir.Compute) -> Sequence[Call]:
        op = compute.op
        cell, runner = self._cells[op.stage, op.microbatch], self._runners[op.stage]
        run: Call = partial(calls(runner, op.kind, cell), cell)
        if self._paced is not None and not op.kind.copies:
            run = partial(_stretched, run, float(self._paced.of_ops(pack([op]))[0]) / 1e3)
        timed = [self.clock.timed(run, self._marks)]
        self._marks += 2
        hand_over = self._hand_over(op, cell)
        return timed if hand_over is None else [*timed, hand_over]

    def _hand_over(self, op: Op, cell: Cell) -> Call | None:
        """Passes the result on where its next stage runs on this rank, too."""
        if op.kind is OpKind.F:
            target, hand_over = (op.stage + 1, op.microbatch), pass_output
        elif op.kind in (OpKind.B, OpKind.BW):
            target, hand_over = (op.stage - 1, op.microbatch), pass_gradient
        else:
            return None
        return partial(hand_over, cell, self._cells[target]) if target in self._cells else None

    def _where(self, position: int) -> str:
        instruction = self._row[position]
        peer = _peer(self._row, instruction)
        return (
            f"rank {self._transport.rank}: instruction {position} of {len(self._row)} "
            f"({self._place(position)}), "
            f"{str(instruction)!r}{'' if peer is None else f', peer rank {peer}'}"
        )

    def _place(self, position: int) -> str:
        """The place of an instruction in the schedule, in words."""
        done = sum(isinstance(i, ir.Compute) for i in self._row[:position])
        if done == len(self.ops):
            return f"after the last of {counted(done, 'op')}"
        place = f"op {done} of {len(self.ops)}"
        computes = isinstance(self._row[position], ir.Compute)
        return place if computes else f"before {place}, {self.ops[done]}"


def _under(name: str, calls: Sequence[Call]) -> None:
    with torch.profiler.record_function(name):
        for call in calls:
            call()


def _present(*calls: Call | None) -> list[Call]:
    return [call for call in calls if call is not None]


def _stretched(run: Call, seconds: float) -> None:
    """Runs and then sleeps until ``seconds`` after the start."""
    end = time.perf_counter() + seconds
    run()
    time.sleep(max(0.0, end - time.perf_counter()))


_MAKERS: dict[type, Callable[[Executor, Any], Sequence[Call]]] = {
    ir.Compute: Executor._compute,
    ir.Receive: Executor._receive,
    ir.Send: Executor._send,
    ir.WaitReceive: Executor._wait_receive,
    ir.WaitSend: Executor._wait_send,
    ir.Free: Executor._freeing,
    ir.Reduce: lambda executor, reduce: [executor._step_end.reduce(reduce.stages)],
    ir.Average: lambda executor, average: [executor._step_end.average(average.stage)],
    ir.Step: lambda executor, step: [executor._step_end.step(step.stage)],
    ir.Relay: Executor._relaying,
}


def _peer(row: Sequence[ir.Instruction], instruction: ir.Instruction) -> int | None:
    """The rank at the other end of a message, also where only its wait is known."""
    if isinstance(instruction, ir.Relay):
        return instruction.source
    if not isinstance(instruction, ir.Send | ir.WaitSend | ir.Receive | ir.WaitReceive):
        return None
    sends = isinstance(instruction, ir.Send | ir.WaitSend)
    for other in row:
        if sends and isinstance(other, ir.Send) and other.tensor == instruction.tensor:
            return other.target
        if not sends and isinstance(other, ir.Receive) and other.tensor == instruction.tensor:
            return other.source
    return None
