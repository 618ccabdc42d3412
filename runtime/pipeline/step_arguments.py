"""Arguments of a step on a rank, and a check that their shapes stay the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ShapeError
from ..executor.stage_runner import Cell
from ..tensors.microbatches import Batch
from ..tensors.trees import Form, form


@dataclass(frozen=True, slots=True)
class StepData:
    """The arguments of ``step`` or ``eval`` on this rank."""

    inputs: Sequence[Batch]
    options: Mapping[str, Any]
    target: Batch | None
    loss_kwargs: Mapping[str, Any]


def given(stage: int, cell: Cell) -> tuple[Form, ...]:
    """Returns shapes and dtypes of a microbatch's arguments on a stage; other values as text."""
    inputs = cell.inputs if stage == 0 else ()
    options = [(name, form(value)) for name, value in sorted(cell.options.items())]
    return (*map(form, inputs), *options)


def check_like_first(
    places: Iterable[tuple[int, int]],
    first: Sequence[tuple[Form, ...]],
    now: Sequence[tuple[Form, ...]],
) -> None:
    """Raises ShapeError if a (stage, microbatch) has other arguments than in the first step."""
    for (stage, j), was, new in zip(places, first, now, strict=True):
        if was != new:
            raise ShapeError(
                f"step: stage {stage} is given {_shown(new)} for microbatch {j}, was given "
                f"{_shown(was)} in the first step: varying_shapes=True lets it"
            )


def _shown(forms: Sequence[Form]) -> str:
    return ", ".join(map(_text, forms)) or "nothing"


def _text(form: Form) -> str:
    match form:
        case (str(name), value):
            return f"{name}={_text(value)}"
        case tuple():
            return f"({_shown(form)})"
    return str(form)
