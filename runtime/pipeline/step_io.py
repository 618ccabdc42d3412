"""What a step is given and gives back: batches into the cells, losses and outputs out of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from pipeloom.ir.errors import InputError
from pipeloom.ir.model import program as ir
from pipeloom.ir.model.ops import OpKind

from ..executor.offload import Host, OffloadedActivations
from ..executor.stage_runner import Cell
from ..executor.weight_grad_deferral import WeightQueue
from ..rank.context import RankContext
from ..tensors.microbatches import Batch, merge, split
from .step_inputs import Cells, StepInputs


def make_cells(context: RankContext) -> dict[tuple[int, int], Cell]:
    """One for each (stage, microbatch) of the rank; those with a W get a queue."""
    memory, host = context.memory, Host(context.device)
    pairs: dict[tuple[int, int], set[OpKind]] = {}
    for item in context.program.instructions[context.role.rank]:
        if isinstance(item, ir.Compute):
            op = item.op
            pairs.setdefault((op.stage, op.microbatch), set()).add(op.kind)
    return {
        pair: Cell(
            WeightQueue(memory) if OpKind.W in kinds else None,
            recomputed=OpKind.R in kinds,
            offloaded=OffloadedActivations(host, memory) if OpKind.O in kinds else None,
        )
        for pair, kinds in sorted(pairs.items())
    }


class StepIO:
    """Fills a rank's cells before a step and empties them of its results."""

    def __init__(self, context: RankContext, cells: Cells) -> None:
        problem, options = context.program.schedule.problem, context.options
        self._microbatches, last = problem.microbatches, problem.stages - 1
        self._rank, self._memory = context.role.rank, context.memory
        self._needs_loss = options.loss is None
        self._inputs = StepInputs(
            cells, problem.microbatches, options.param_dtype, varying=options.varying_shapes
        )
        self._cells = cells.values()
        self._has_first = any(stage == 0 for stage, _ in cells)
        self._last = {j: cell for (stage, j), cell in cells.items() if stage == last}

    def put(
        self, inputs: Sequence[Batch], options: Mapping[str, Any], target: Batch | None
    ) -> None:
        """Raises InputError where something that this rank needs is missing, ShapeError where it
        does not fit."""
        if self._has_first and not (inputs or options):
            raise InputError(
                f"step: rank {self._rank} runs the first stage: its inputs are missing"
            )
        self._inputs.put(inputs if self._has_first else (), options)
        if self._last:
            if self._needs_loss or target is None:
                missing = "loss" if self._needs_loss else "target"
                raise InputError(
                    f"step: rank {self._rank} runs the last stage: {missing} is missing"
                )
            targets = split(target, self._microbatches, "target")
            for j, cell in self._last.items():
                cell.target = targets[j]

    def clear(self) -> None:
        """Drops all that a step which is to be run again has left so far."""
        for cell in self._cells:
            self._memory.release(cell.held)
            cell.clear()

    def collect(self, losses: list[Tensor] | None) -> Any:
        """The outputs of the last stage as one batch, None elsewhere; ``losses`` becomes its
        losses."""
        last = self._last.values()
        if losses is not None:
            losses[:] = [cell.loss for cell in last if cell.loss is not None]
        outputs = [cell.result for cell in last if cell.result is not None]
        for cell in last:
            cell.loss = cell.result = None
        return merge(outputs) if outputs else None
