"""Prepares one rank's instructions as a list of calls, which every step runs.

::

    prepare:  1F0; send x2.0 to 2; ...   ->   [partial(runner.forward, cell), message.post, ...]
    step:     for call in calls: call()

If ops are short, this loop is the runtime's overhead; most of that is caused by code that was
evicted from the CPU's caches while an op ran. :mod:`.instruction_calls` creates the calls of each
instruction.

If torch's profiler is active in a step, each instruction is recorded under its text (``2F0``,
``send x2.0 to 2``; ``eval 2F0`` in an evaluation). Kineto's traces, HTA and, with ``emit_nvtx``,
Nsight show these texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from pipeloom.ir.model import program as ir
from pipeloom.ir.model.ops import Op

from ..device import Device
from ..measure.op_timer import Clock, make_clock
from ..rank.context import RankContext
from ..tensors.stage_interface import StageInterface
from .instruction_calls import InstructionCalls
from .instruction_texts import failed, under_texts
from .stage_runner import Cell, StageRunner

if TYPE_CHECKING:
    from ..optim.step_end import StepEnd


class Executor:
    """Runs the instructions of one rank.

    ``runners`` are indexed by stage and ``cells`` by (stage, microbatch), both only for the stages
    of this rank. ``interfaces[stage][microbatch]`` describes the stage's outputs. ``step_end``
    creates the calls for the instructions reduce, average, step and relay. ``label``: the prefix of
    each instruction's text in the profiler's trace.
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
        self.program, self.rank, self._label = context.program, context.transport.rank, label
        self.runners, self.row = runners, self.program.instructions[self.rank]
        self.step_end: StepEnd = step_end
        self.ops: list[Op] = [i.op for i in self.row if isinstance(i, ir.Compute)]
        self.clock: Clock = make_clock(2 * len(self.ops), context.device)
        self._anchors = not Device(context.device).is_host  # the host's clock needs no start
        made = InstructionCalls(self, context, cells, interfaces)
        self._prepared = [made.of(each) for each in self.row]
        self.calls = [call for calls in self._prepared for call in calls]
        self._positions = [at for at, calls in enumerate(self._prepared) for _ in calls]

    def run(self) -> None:
        """Runs all instructions of one step.

        If an instruction fails, raises InputError if the user's input is the cause, otherwise
        ExecutionError; the message names the instruction.
        """
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
