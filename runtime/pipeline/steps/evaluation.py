"""Evaluation: the forwards of a program on M microbatches, without gradients.

Before the forwards, ranks exchange the shapes of their microbatches. So an error in the arguments
of one rank is raised on all ranks, and the pipeline remains usable. But if there are replicas, the
error ends all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import nn

from ...executor.executor import Executor
from ...executor.stage_runner import Cell, StageRunner
from ...measure.memory import Memory
from ...rank.context import RankContext
from ...tensors.forward_state import undisturbed
from ...transport import gathered
from ..step_inputs import Result, StepData, StepInputs, taken
from .forward_only import forward_only
from .prepared import Prepared, hand_on, make_cells
from .shape_inference import ShapeInference

LABEL = "eval "
"""Prefix of the instructions' names in the trace of ``torch.profiler``, where steps have none."""


class ForwardRunner(StageRunner):
    """A runner whose F's keep nothing for a backward; computes losses if there are targets."""

    def _forward(self, cell: Cell) -> None:
        super()._forward(cell)
        cell.inputs, cell.options, cell.roots = (), {}, ()

    def _finish(self, cell: Cell, output: Any) -> None:
        if cell.target is not None:
            cell.loss = self._judged(cell, output)
        self._keep(cell, output)


class Evaluation:
    """Evaluates the stages that a rank trains; all ranks create one and call ``run`` together.

    ``own``: everything prepared for the pipeline's own program.
    """

    def __init__(self, own: Prepared) -> None:
        context = own.context
        self._training, self._step_end, self._memory = context, own.step_end, Memory()
        self._shapes = ShapeInference(context, own.skips, grad=False)
        self._runners = {
            s: own.runner(s, self._memory, stashing=False, kind=ForwardRunner)
            for s in context.role.run
        }

    @cached_property
    def _context(self) -> RankContext:
        options = replace(self._training.options, pace=False)
        program = forward_only(self._training.program)
        return replace(self._training, memory=self._memory, options=options, program=program)

    def run(self, data: StepData, *, wants_losses: bool, keep_outputs: bool) -> list[Result]:
        """Runs the forwards of all microbatches; returns the output and loss of each.

        The list is empty on ranks without the last stage. ``wants_losses``: whether losses are
        computed, so that a missing target is an error. ``keep_outputs``: whether outputs are
        returned; otherwise, they are None. Errors in the arguments of one rank (InputError,
        ShapeError) are raised on all ranks.
        """
        context, count = self._context, self._context.program.schedule.problem.microbatches
        cells = make_cells(context)
        inputs = StepInputs(context, cells, count)
        judged = wants_losses or data.target is not None
        gathered(context.transport, partial(inputs.put, data, judged=judged))
        for runner in self._runners.values():
            runner.keep_outputs = keep_outputs
        context.store.gather()
        modules = [runner.module for runner in self._runners.values()]
        with _evaluating(modules, context.device):
            interfaces = self._shapes.interfaces(cells)
            hand_on(cells, interfaces)
            with context.store.computing():
                given = context, self._step_end, cells, self._runners, interfaces
                Executor(*given, label=LABEL).run()
        return taken(inputs.last)


@contextmanager
def _evaluating(modules: Sequence[nn.Module], device: torch.device) -> Iterator[None]:
    """A context in which ``modules`` are in evaluation mode and no gradients are computed.

    At its end, the modules' modes and buffers and the random states are as before.
    """
    modes = [(part, part.training) for module in modules for part in module.modules()]
    try:
        for module in modules:
            module.eval()
        with torch.no_grad(), undisturbed(modules, [device]):
            yield
    finally:
        for part, mode in modes:
            part.training = mode
