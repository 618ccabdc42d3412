"""Model sources: a user's model that can be cut into stages, with its loss, data and optimizer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from pipeloom.ir.errors import InputError
from pipeloom.ir.units import counted

from ..rank.options import ModelNames
from ..stages.store import Stage, made


class ModelSource(Protocol):
    """A model that can be cut into any number of stages, with everything needed to train it."""

    def stages(self, count: int) -> Sequence[Stage]:
        """Returns a function per stage that creates its module.

        It is called only where the stage is needed, and must create the same weights wherever it is
        called. Modules are accepted instead; every process then creates all of them.
        """
        ...

    def tied(self, count: int) -> Sequence[Sequence[tuple[int, str]]]:
        """Returns groups of (stage, parameter name) that are the same parameter."""
        ...

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Returns the mean loss over one microbatch, a scalar."""
        ...

    def batch(self, step: int, microbatches: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """Returns inputs and targets of one training step, one of each per microbatch."""
        ...

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Returns a new optimizer for some of the model's parameters."""
        ...


def skips_of(source: ModelSource, count: int) -> Sequence[tuple[int, int]]:
    """Returns the skip connections (pairs of stages) by the source's optional method ``skips``."""
    skips: Callable[[int], Sequence[tuple[int, int]]] | None = getattr(source, "skips", None)
    return () if skips is None else skips(count)


def options_of(source: ModelSource, count: int, *, train: bool = True) -> dict[str, Any]:
    """Returns the :class:`Pipeline` options that a source of ``count`` stages defines.

    The optimizer is None unless ``train``.
    """
    names: Callable[[int], ModelNames] | None = getattr(source, "names", None)  # an optional method
    return {
        "loss": source.loss,
        "optimizer": source.optimizer if train else None,
        "tied": source.tied(count),
        "skips": skips_of(source, count),
        "names": None if names is None else names(count),
    }


BATCH, EVAL_BATCH = "batch", "eval_batch"


def check_evaluation(source: ModelSource) -> None:
    """Raises InputError if the source has no ``eval_batch`` or if that returns invalid values."""
    if not callable(getattr(source, EVAL_BATCH, None)):
        raise InputError(
            f"eval_every: expected a model source with {EVAL_BATCH}(step, microbatches), which "
            f"gives inputs and targets as batch does; {type(source).__name__} has none"
        )
    checked_batch(source, 0, 1, EVAL_BATCH)


def checked_stages(source: ModelSource, count: int) -> list[Stage]:
    """Returns ``source.stages(count)``. Raises InputError if that is not one function per stage."""
    value: Any = source.stages(count)
    stages = list(value) if isinstance(value, Iterable) else []
    if len(stages) != count or not all(map(callable, stages)):
        raise InputError(
            f"{type(source).__name__}.stages({count}): expected a list of {count} functions that "
            f"return a module, got {_shown(value)}"
        )
    return stages


Place: TypeAlias = Callable[[Stage, int], nn.Module]
"""Creates a stage's module on the rank that runs it, given the stage and its number."""


def on_device(device: torch.device, dtype: torch.dtype | None) -> Place:
    """Returns a function that creates a stage's module on ``device``, in ``dtype`` if given."""
    return lambda stage, number: made(stage, number).to(device=device, dtype=dtype)


def placed_stages(source: ModelSource, count: int, place: Place | None) -> Sequence[Stage]:
    """Returns ``source.stages(count)``, checked; if ``place`` is given, it creates each module.

    For stages that are modules, it is called here, so that the pipeline finds shared parameters.
    """
    stages = checked_stages(source, count)
    if place is None:
        return stages
    return [
        place(stage, s) if isinstance(stage, nn.Module) else partial(place, stage, s)
        for s, stage in enumerate(stages)
    ]


def check_cut(source: ModelSource, count: int) -> None:
    """Raises InputError, before processes start, if the source cannot be cut into ``count`` stages.

    Other errors are ignored: they occur again on the ranks, which report where. Processes under
    torchrun check the cut themselves.
    """
    try:
        if "RANK" not in os.environ:
            checked_stages(source, count)
    except InputError:
        raise
    except Exception:
        pass


MOST_CHUNKS = 64
"""Highest number of stages per rank in any placement."""


def most_stages(source: ModelSource, count: int) -> int | None:
    """Returns the largest number of stages that a plan may cut ``source`` into.

    ``count``: a possible number. Placements cut each stage into equally many pieces, so the search
    stops before the first multiple of ``count`` that is impossible. (A source whose number of
    stages must divide its layers can be cut into some larger numbers.) Returns None if
    :data:`MOST_CHUNKS` times ``count`` is possible.
    """
    for stages in range(2 * count, MOST_CHUNKS * count + 1, count):
        if not _is_possible(source, stages):
            fewer = range(stages - 1, stages - count, -1)
            return next((n for n in fewer if _is_possible(source, n)), stages - count)
    return None


def _is_possible(source: ModelSource, count: int) -> bool:
    try:
        checked_stages(source, count)
    except Exception:
        return False
    return True


def checked_batch(
    source: ModelSource, step: int, microbatches: int, method: str = BATCH
) -> tuple[list[Tensor], list[Tensor]]:
    """Returns ``source.batch(step, microbatches)``, or the result of its optional ``eval_batch``.

    Raises InputError if it is not one tensor per microbatch for inputs and targets.
    """
    value: Any = getattr(source, method)(step, microbatches)
    name = f"{type(source).__name__}.{method}({step}, {microbatches})"
    if not (isinstance(value, Sequence) and len(value) == 2):
        raise InputError(f"{name}: expected a pair, inputs and targets, got {_shown(value)}")
    inputs, targets = value
    return (
        _microbatches(inputs, microbatches, f"{name}: inputs"),
        _microbatches(targets, microbatches, f"{name}: targets"),
    )


def _microbatches(value: Any, count: int, name: str) -> list[Tensor]:
    tensors = isinstance(value, Sequence) and all(isinstance(x, Tensor) for x in value)
    if not tensors or len(value) != count:
        hint = f": tensor.chunk({count}) cuts it" if isinstance(value, Tensor) else ""
        raise InputError(
            f"{name}: expected a list of {counted(count, 'tensor')}, one per microbatch, got "
            f"{_shown(value)}{hint}"
        )
    return list(value)


def _shown(value: object) -> str:
    if isinstance(value, Tensor):
        return f"one tensor {list(value.shape)}"
    if isinstance(value, list | tuple):
        kinds = sorted({type(item).__name__ for item in value})
        return f"a {type(value).__name__} of {len(value)} ({', '.join(kinds) or 'nothing'})"
    return type(value).__name__
