"""Moves data between a step's arguments and its cells (:class:`~..executor.stage_runner.Cell`).

Batches are split and put into the cells of the microbatches; losses and outputs are taken out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor

from pipeloom.ir.errors import InputError

from ..executor.stage_runner import Cell
from ..rank.context import RankContext
from ..tensors.microbatches import Batch, split, split_options
from ..tensors.rows import cut, merge
from ..tensors.trees import Form, form, mapped

Cells: TypeAlias = Mapping[tuple[int, int], Cell]


@dataclass(frozen=True, slots=True)
class StepData:
    """The data arguments of :meth:`Pipeline.step` or ``eval`` on this rank, documented there."""

    inputs: Sequence[Batch]
    options: Mapping[str, Any]
    target: Batch | None
    loss_kwargs: Mapping[str, Any]


class StepInputs:
    """Fills a rank's ``cells`` with a step's batches, split into ``microbatches``.

    ``cells``: by (stage, microbatch). ``last``: for each microbatch, a pair of its index and its
    cell of the last stage, which will contain its output and loss; empty if this rank does not run
    that stage.
    """

    def __init__(self, context: RankContext, cells: Cells, microbatches: int) -> None:
        options, end = context.options, context.program.schedule.problem.stages - 1
        self._rank, self._loss, self._dtype = context.role.rank, options.loss, options.param_dtype
        self._cells, self._microbatches = cells, microbatches
        self._first = [(j, cell) for (s, j), cell in cells.items() if s == 0]
        self.last = [(j, cell) for (s, j), cell in cells.items() if s == end]

    def put(self, data: StepData, *, judged: bool = True) -> None:
        """Fills the cells with ``data``.

        ``judged``: whether losses are computed; otherwise, targets are not needed. Raises
        InputError if an argument that this rank needs is missing, and ShapeError if a batch cannot
        be split into the number of microbatches.
        """
        if self._first:
            self._put_inputs(data)
        each = split_options(data.options, self._microbatches) if data.options else []
        for (_, j), cell in self._cells.items():
            cell.options = mapped(self._cast, each[j]) if each else {}
        if self.last and judged:
            self._put_targets(data)

    def forms(self, data: StepData) -> list[Form]:
        """Returns a list that is equal for two steps if the same graphs can run their arguments.

        For each argument of this rank's stages, it contains shape and dtype of a tensor, and the
        :func:`~..tensors.trees.form` of any other value.
        """
        whole = (*(data.inputs if self._first else ()), *data.options.values(), *data.options)
        return [(x.shape, x.dtype) if isinstance(x, Tensor) else form(x) for x in whole]

    def _put_inputs(self, data: StepData) -> None:
        if not (data.inputs or data.options):
            raise InputError(
                f"step: rank {self._rank} runs the first stage: its inputs are missing"
            )
        parts = [self._cut(x, f"input {i}") for i, x in enumerate(data.inputs)]
        if self._dtype is not None:
            parts = [[mapped(self._cast, x) for x in each] for each in parts]
        for j, cell in self._first:
            cell.inputs = tuple([part[j] for part in parts])

    def _cut(self, batch: Batch, name: str) -> Sequence[Any]:
        of = cut if isinstance(batch, Tensor) else split
        return of(batch, self._microbatches, name)

    def _cast(self, x: Tensor) -> Tensor:
        return x.to(self._dtype) if self._dtype is not None and x.is_floating_point() else x

    def _put_targets(self, data: StepData) -> None:
        """Stores targets and keyword arguments of the loss in the last stage's cells.

        Raises InputError if the loss function or the target is missing.
        """
        if self._loss is None or data.target is None:
            missing = "loss" if self._loss is None else "target"
            raise InputError(f"step: rank {self._rank} runs the last stage: {missing} is missing")
        targets = self._cut(data.target, "target")
        for j, cell in self.last:
            cell.target = targets[j], data.loss_kwargs


Result: TypeAlias = tuple[Any, Tensor | None]  # a microbatch's output and loss


def taken(cells: Sequence[tuple[int, Cell]]) -> list[Result]:
    """Returns the (output, loss) of each of the last stage's ``cells``, and removes both from them.

    An output that was not kept and a loss that was not computed are None.
    """
    found = [(cell.result, cell.loss) for _, cell in cells]
    for _, cell in cells:
        cell.result = cell.loss = None
    return found


def hand_out(results: Sequence[Result], losses: list[Tensor] | None) -> Any:
    """Returns the outputs of all microbatches, and replaces the contents of ``losses``.

    The outputs are concatenated to one batch, or a list if that is impossible; None if no output
    was kept. ``losses`` (if not None) then contains the loss of each microbatch that has one.
    """
    if losses is not None:
        losses[:] = [loss for _, loss in results if loss is not None]
    outputs = [output for output, _ in results if output is not None]
    return merge(outputs) if outputs else None
