"""Inputs and results of a step: batches into its microbatches' cells, losses and outputs out of
them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from pipeloom.ir.errors import InputError
from pipeloom.ir.formats.json_reader import is_count

from ...errors import ShapeError
from ...executor.losses import arguments
from ...executor.stage_runner import Cell
from ...rank.options import IN_MODEL, Loss
from ...tensors.microbatches import Batch, Form, form, mapped, merge, split, split_options

Cells: TypeAlias = Mapping[tuple[int, int], Cell]


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


class StepInputs:
    """Inputs of the first stage and options of every stage.

    ``dtype``: what floating ones are cast to; None leaves them. ``varying``: shapes may be others
    in each step.
    """

    def __init__(
        self, cells: Cells, microbatches: int, dtype: torch.dtype | None, *, varying: bool
    ) -> None:
        self._cells, self._microbatches = cells, microbatches
        self._dtype, self._varying = dtype, varying
        self._whole: tuple[Form, ...] | None = None  # of the last step
        self._first: list[tuple[Form, ...]] = []  # of each cell in the first step

    def put(self, inputs: Sequence[Batch], options: Mapping[str, Any]) -> None:
        """Raises ShapeError for batches that cannot be cut, or shapes unlike the first step's."""
        count = self._microbatches
        parts = [self._cut(batch, f"input {i}") for i, batch in enumerate(inputs)]
        each = split_options(options, count) if options else []
        for (stage, j), cell in self._cells.items():
            if stage == 0:
                cell.inputs = tuple([part[j] for part in parts])
            cell.options = mapped(self._cast, each[j]) if each else {}
        if not self._varying:
            self._check(inputs, options)

    def _cut(self, batch: Batch, name: str) -> Sequence[Any]:
        parts = split(batch, self._microbatches, name)
        if self._dtype is None and isinstance(parts[0], Tensor):
            return parts
        return [mapped(self._cast, part) for part in parts]

    def _cast(self, x: Tensor) -> Tensor:
        return x.to(self._dtype) if self._dtype is not None and x.is_floating_point() else x

    def _check(self, inputs: Sequence[Batch], options: Mapping[str, Any]) -> None:
        """Compares whole arguments with the last step's; where these differ, each cell's."""
        whole = (*map(form, inputs), *((name, form(x)) for name, x in sorted(options.items())))
        if whole == self._whole:
            return
        now = [given(stage, cell) for (stage, _), cell in self._cells.items()]
        self._first = self._first or now
        for (stage, j), was, new in zip(self._cells, self._first, now, strict=True):
            if was != new:
                raise ShapeError(
                    f"step: stage {stage} is given {_shown(new)} for microbatch {j}, was given "
                    f"{_shown(was)} in the first step: varying_shapes=True lets it"
                )
        self._whole = whole


def given(stage: int, cell: Cell) -> tuple[Form, ...]:
    """Shapes and dtypes of a microbatch's arguments on a stage; other values as they print."""
    inputs = cell.inputs if stage == 0 else ()
    options = [(name, form(value)) for name, value in sorted(cell.options.items())]
    return (*map(form, inputs), *options)


def _shown(forms: Sequence[Form]) -> str:
    return ", ".join(map(_text, forms)) or "nothing"


def _text(form: Form) -> str:
    match form:
        case (str(name), value):
            return f"{name}={_text(value)}"
        case tuple():
            return f"({_shown(form)})"
    return str(form)


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
