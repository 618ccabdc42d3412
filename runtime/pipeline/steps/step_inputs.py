"""Arguments of a step, put into the cells of its microbatches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ...errors import ShapeError
from ...executor.stage_runner import Cell
from ...tensors.microbatches import Batch, Form, form, mapped, split, split_options

Cells: TypeAlias = Mapping[tuple[int, int], Cell]


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
        self._first: list[tuple[object, ...]] | None = None

    def put(self, inputs: Sequence[Batch], options: Mapping[str, Any]) -> None:
        """Raises ShapeError for batches that cannot be cut, or shapes unlike the first step's."""
        count = self._microbatches
        parts = [
            [mapped(self._cast, part) for part in split(batch, count, f"input {i}")]
            for i, batch in enumerate(inputs)
        ]
        each = split_options(options, count) if options else []
        for (stage, j), cell in self._cells.items():
            if stage == 0:
                cell.inputs = tuple(part[j] for part in parts)
            cell.options = mapped(self._cast, each[j]) if each else {}
        if not self._varying:
            self._check()

    def _cast(self, x: Tensor) -> Tensor:
        return x.to(self._dtype) if self._dtype is not None and x.is_floating_point() else x

    def _check(self) -> None:
        now = [given(stage, cell) for (stage, _), cell in self._cells.items()]
        if self._first is None:
            self._first = now
        if now == self._first:
            return
        for (stage, j), was, new in zip(self._cells, self._first, now, strict=True):
            if was != new:
                raise ShapeError(
                    f"step: stage {stage} is given {_shown(new)} for microbatch {j}, was given "
                    f"{_shown(was)} in the first step: varying_shapes=True lets it"
                )


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
