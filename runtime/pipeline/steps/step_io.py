"""Inputs and results of a step: batches into the cells, losses and outputs out of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pipeloom.ir.errors import InputError
from pipeloom.ir.formats.json_reader import is_count
from pipeloom.ir.model import program as ir
from pipeloom.ir.model.ops import OpKind

from ...executor.losses import arguments
from ...executor.offload import Host, OffloadedActivations
from ...executor.stage_runner import Cell
from ...executor.weight_grad_deferral import WeightQueue
from ...rank.context import RankContext
from ...rank.options import IN_MODEL, Loss
from ...tensors.microbatches import Batch, merge, split, split_options
from .step_inputs import Cells, StepInputs


def make_cells(context: RankContext) -> dict[tuple[int, int], Cell]:
    """The cells of the rank, one for each (stage, microbatch); those with a W get a queue."""
    memory, host = context.memory, Host(context.device)
    pairs: dict[tuple[int, int], set[OpKind]] = {}
    for item in context.program.instructions[context.role.rank]:
        if isinstance(item, ir.Compute):
            pairs.setdefault((item.op.stage, item.op.microbatch), set()).add(item.op.kind)
    return {
        pair: Cell(
            WeightQueue(memory) if OpKind.W in kinds else None,
            recomputed=OpKind.R in kinds,
            offloaded=OffloadedActivations(host, memory) if OpKind.O in kinds else None,
        )
        for pair, kinds in sorted(pairs.items())
    }


@dataclass(frozen=True, slots=True)
class StepData:
    """The arguments of ``step`` or ``eval`` on this rank."""

    inputs: Sequence[Batch]
    options: Mapping[str, Any]
    target: Batch | None
    loss_kwargs: Mapping[str, Any]

    def check_inputs(self, rank: int) -> None:
        """Raises InputError where a rank that runs the first stage was given nothing."""
        if not (self.inputs or self.options):
            raise InputError(f"step: rank {rank} runs the first stage: its inputs are missing")


def checked_count(microbatches: int) -> int:
    """The number. Raises InputError where it is none of microbatches."""
    if not is_count(microbatches) or microbatches < 1:
        raise InputError(f"microbatches: expected a number of at least 1, got {microbatches!r}")
    return microbatches


def put_targets(
    cells: Mapping[int, Cell], data: StepData, count: int, loss: Loss | None, rank: int
) -> None:
    """Gives the last stage's cells, by microbatch of ``count``, what their losses are made of.

    That is the target and the loss's keyword arguments; where the model computes its ``loss``, the
    target is arguments of the last stage. Raises InputError for what is missing or does not go
    together, ShapeError for targets that do not fit.
    """
    if loss == IN_MODEL:
        _put_arguments(cells, data, count)
        return
    if loss is None or data.target is None:
        missing = "loss" if loss is None else "target"
        raise InputError(f"step: rank {rank} runs the last stage: {missing} is missing")
    targets = split(data.target, count, "target")
    for j, cell in cells.items():
        cell.target = targets[j], data.loss_kwargs


def _put_arguments(cells: Mapping[int, Cell], data: StepData, count: int) -> None:
    if data.loss_kwargs:
        raise InputError(
            f"loss_kwargs: expected none with loss={IN_MODEL!r}, whose arguments are the target's, "
            f"got {', '.join(data.loss_kwargs)}"
        )
    each = split_options(arguments(data.target), count)
    twice = sorted(data.options.keys() & each[0].keys())
    if twice:
        raise InputError(
            f"target: expected what is no keyword argument of the step, too, got {twice[0]}"
        )
    for j, cell in cells.items():
        cell.options, cell.target = {**cell.options, **each[j]}, ()


class StepIO:
    """Fills a rank's cells before a step and empties them of its results."""

    def __init__(self, context: RankContext, cells: Cells) -> None:
        problem, options = context.program.schedule.problem, context.options
        self._microbatches, last = problem.microbatches, problem.stages - 1
        self._rank, self._memory = context.role.rank, context.memory
        self._loss = options.loss
        self._inputs = StepInputs(
            cells, problem.microbatches, options.param_dtype, varying=options.varying_shapes
        )
        self._cells = cells.values()
        self._has_first = any(stage == 0 for stage, _ in cells)
        self._last = {j: cell for (stage, j), cell in cells.items() if stage == last}

    def put(self, data: StepData) -> None:
        """Raises InputError for what is missing, ShapeError for what does not fit."""
        if self._has_first:
            data.check_inputs(self._rank)
        self._inputs.put(data.inputs if self._has_first else (), data.options)
        if self._last:
            put_targets(self._last, data, self._microbatches, self._loss, self._rank)

    def clear(self) -> None:
        """Drops all that a step which is to be run again has left so far."""
        for cell in self._cells:
            self._memory.release(cell.held)
            cell.clear()

    def results(self) -> Results:
        """The results of the microbatches that end here."""
        results = Results()
        results.take(self._last.values())
        return results


class Results:
    """Outputs, losses and metrics of microbatches, in their order; empty where none ends on this
    rank."""

    def __init__(self) -> None:
        self._outputs: list[Any] = []
        self._losses: list[Tensor] = []
        self._metrics: list[Any] = []

    def take(self, cells: Iterable[Cell]) -> None:
        """Takes results out of the last stage's cells."""
        for cell in cells:
            if cell.result is not None:
                self._outputs.append(cell.result)
            if cell.loss is not None:
                self._losses.append(cell.loss)
            if cell.metrics is not None:
                self._metrics.append(cell.metrics)
            cell.loss = cell.metrics = cell.result = None

    def hand_out(self, losses: list[Tensor] | None, metrics: list[Any] | None) -> Any:
        """The outputs as one batch, else None; ``losses`` and ``metrics`` are filled."""
        if losses is not None:
            losses[:] = self._losses
        if metrics is not None:
            metrics[:] = self._metrics
        return merge(self._outputs) if self._outputs else None
