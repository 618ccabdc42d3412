"""Evaluation: a program's forwards on any number of microbatches, in rounds of M.

::

    M = 4, ten microbatches    F0 F1 F2 F3 │ F4 F5 F6 F7 │ F8 F9
                                  round        round       round of the first two

The program of a round is that of :mod:`.forward_only`. Before the first round, ranks exchange the
number of microbatches and their shapes. So an error in the arguments of one rank is raised on all
ranks, and the pipeline remains usable. But if there are replicas, the error ends all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch import nn

from pipeloom.ir.errors import InputError
from pipeloom.ir.units import counted

from ...executor.executor import Executor
from ...executor.stage_runner import Cell, StageRunner
from ...measure.memory import Memory
from ...rank.context import RankContext
from ...tensors.forward_state import undisturbed
from ...tensors.microbatches import is_cut, option_counts
from ...transport import agreed, gathered
from ..step_inputs import Cells, Result, StepData, StepInputs, taken
from .forward_only import forward_only
from .prepared import Prepared, hand_on, make_cells
from .shape_inference import Interfaces, ShapeInference

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


class ForwardRounds:
    """Evaluates the stages that a rank trains; all ranks create one and call ``run`` together.

    ``own``: everything prepared for the pipeline's own program.
    """

    def __init__(self, own: Prepared) -> None:
        context, problem = own.context, own.context.program.schedule.problem
        options = replace(context.options, pace=False)
        self._context = replace(context, memory=Memory(), options=options)
        self._step_end = own.step_end
        self._microbatches = problem.microbatches
        self._shapes = ShapeInference(context, own.skips, grad=False)
        self._runners = {
            s: own.runner(s, self._context.memory, stashing=False, kind=ForwardRunner)
            for s in context.role.run
        }
        self._program = cache(partial(forward_only, context.program))

    def run(
        self, data: StepData, asked: int | None, *, wants_losses: bool, keep_outputs: bool
    ) -> list[Result]:
        """Runs the forwards of all microbatches; returns the output and loss of each.

        The list is empty on ranks without the last stage. ``asked``: the number of microbatches;
        None: the length of lists in ``data``, or M. ``wants_losses``: whether losses are computed,
        so that a missing target is an error. ``keep_outputs``: whether outputs are returned;
        otherwise, they are None. Errors in the arguments of one rank (InputError, ShapeError) are
        raised on all ranks.
        """
        transport, store, size = self._context.transport, self._context.store, self._microbatches
        count = self._count(data, asked)
        rounds = [self._of(min(size, count - first)) for first in range(0, count, size)]
        each = [make_cells(context) for context in rounds]
        cells = {(s, i * size + j): x for i, own in enumerate(each) for (s, j), x in own.items()}
        inputs = StepInputs(self._context, cells, count)
        judged = wants_losses or data.target is not None
        gathered(transport, partial(inputs.put, data, judged=judged))
        for runner in self._runners.values():
            runner.keep_outputs = keep_outputs
        store.gather()
        modules = [runner.module for runner in self._runners.values()]
        with _evaluating(modules, self._context.device):
            interfaces = self._shapes.interfaces(cells, count)
            with store.computing():
                for i, (context, own) in enumerate(zip(rounds, each, strict=True)):
                    self._round(context, own, [row[i * size :][:size] for row in interfaces])
        return taken(inputs.last)

    def _round(self, context: RankContext, cells: Cells, interfaces: Interfaces) -> None:
        hand_on(cells, interfaces)
        Executor(context, self._step_end, cells, self._runners, interfaces, label=LABEL).run()

    def _of(self, size: int) -> RankContext:
        """Returns the rank's context with the program of a round of ``size`` microbatches."""
        return replace(self._context, program=self._program(size))

    def _count(self, data: StepData, asked: int | None) -> int:
        """Returns the number of microbatches that the ranks' arguments define; by default, M.

        See :meth:`_counts` for the arguments that define it. Raises InputError on all ranks if they
        define different numbers.
        """
        rows = gathered(self._context.transport, partial(self._counts, data, asked))
        found = sorted(set[int]().union(*rows))
        if len(found) > 1:
            texts = " and ".join(counted(size, "microbatch") for size in found)
            raise agreed(
                InputError(f"eval: expected lists of one length on all ranks, got {texts}")
            )
        return found[0] if found else self._microbatches

    def _counts(self, data: StepData, asked: int | None) -> set[int]:
        """Returns the distinct numbers of microbatches that this rank's arguments define.

        These are ``asked``, unless it is None, and the lengths of arguments in ``data`` that are
        lists of microbatches. Raises InputError if a number is less than 1.
        """
        named = {f"input {i}": x for i, x in enumerate(data.inputs)} | {"target": data.target}
        counts = {name: len(x) for name, x in named.items() if is_cut(x)}
        counts |= option_counts(data.options)
        if asked is not None:
            counts["microbatches"] = asked
        for name, size in counts.items():
            if size < 1:
                raise InputError(f"eval: {name}: expected at least one microbatch, got {size}")
        return set(counts.values())


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
