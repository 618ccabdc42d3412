"""One rank's instructions, prepared once into a list of calls and run again every step.

::

    prepare:  1F0; send x2.0 to 2; ...   ->   [partial(runner.forward, cell), message.post, ...]
    step:     for call in calls: call()

Where ops are short this is the runtime's cost, and most of it is code that left the caches while
an op ran. :mod:`.instruction_calls` has what each instruction is prepared to.

In a step that torch's profiler watches, each instruction runs under its own text (``2F0``,
``send x2.0 to 2``; in an evaluation ``eval 2F0``), which Kineto's traces, HTA and, by
``emit_nvtx``, Nsight show.
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
from .instructions_seen import failed, under_texts
from .stage_runner import Cell, StageRunner

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
        self.program, self.rank, self._label = context.program, context.transport.rank, label
        self.runners, self.row = runners, self.program.instructions[self.rank]
        self.step_end: StepEnd = step_end
        self.ops: list[Op] = [i.op for i in self.row if isinstance(i, ir.Compute)]
        self.clock: Clock = make_clock(2 * len(self.ops), context.device)
        self._anchors = not Device(context.device).is_host  # else the clock needs no start
        made = InstructionCalls(self, context, cells, interfaces)
        self._prepared = [made.of(each) for each in self.row]
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
