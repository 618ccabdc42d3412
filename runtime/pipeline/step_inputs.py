"""What a step is given, put into the cells of its microbatches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..errors import ShapeError
from ..executor.stage_runner import Cell
from ..tensors.microbatches import Batch, mapped, split, split_options
from ..tensors.stage_interface import Spec

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
        """Raises ShapeError where batches cannot be cut, or shapes are not those of the first
        step."""
        count = self._microbatches
        parts = [
            list(map(self._cast, split(batch, count, f"input {i}")))
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


def given(stage: int, cell: Cell) -> tuple[object, ...]:
    """Shapes and dtypes of what a step gives to a microbatch on a stage; other options as they
    print."""
    inputs = cell.inputs if stage == 0 else ()
    options = [(name, _form(value)) for name, value in sorted(cell.options.items())]
    return (*((tuple(x.shape), x.dtype) for x in inputs), *options)


def _form(value: Any) -> object:
    return (tuple(value.shape), value.dtype) if isinstance(value, Tensor) else repr(value)


def _shown(forms: tuple[object, ...]) -> str:
    return ", ".join(map(_text, forms)) or "nothing"


def _text(form: object) -> str:
    match form:
        case (str(name), value):
            return f"{name}={_text(value)}"
        case (tuple(shape), torch.dtype() as dtype):
            return str(Spec(shape, dtype))
    return str(form)
