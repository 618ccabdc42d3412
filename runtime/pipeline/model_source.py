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
        """Returns a list of ``count`` functions without arguments that create the stages' modules.

        Each is called only in the processes that need its stage, and must create the same weights
        in all of them. Modules are accepted instead; every process then creates all of them.
        """
        ...

    def tied(self, count: int) -> Sequence[Sequence[tuple[int, str]]]:
        """Returns groups of (stage, parameter name in the stage) that are one tied parameter."""
        ...

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Returns the mean loss over one microbatch, a scalar."""
        ...

    def batch(self, step: int, microbatches: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """Returns the inputs and the targets of one training step, each one tensor per microbatch.

        ``step`` counts from 0.
        """
        ...

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """Returns a new optimizer for some of the model's parameters."""
        ...


def skips_of(source: ModelSource, count: int) -> Sequence[tuple[int, int]]:
    """Returns the pairs (i, j) of stages with a skip connection from stage i to stage j.

    They are the result of the source's optional method ``skips(count)``; an empty tuple if it has
    none.
    """
    skips: Callable[[int], Sequence[tuple[int, int]]] | None = getattr(source, "skips", None)
    return () if skips is None else skips(count)


def options_of(source: ModelSource, count: int, *, train: bool = True) -> dict[str, Any]:
    """Returns the options of :class:`Pipeline` that ``source``, cut into ``count`` stages, defines.

    These are ``loss``, ``optimizer`` (None unless ``train``), ``tied``, ``skips`` and ``names``
    (None if the source has no such method).
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
    """Raises InputError if the source cannot be evaluated.

    That is, if it has no method ``eval_batch``, or if the method returns anything but one tensor
    per microbatch for inputs and for targets.
    """
    if not callable(getattr(source, EVAL_BATCH, None)):
        raise InputError(
            f"eval_every: expected a model source with {EVAL_BATCH}(step, microbatches), which "
            f"gives inputs and targets as batch does; {type(source).__name__} has none"
        )
    checked_batch(source, 0, 1, EVAL_BATCH)


def checked_stages(source: ModelSource, count: int) -> list[Stage]:
    """Returns ``source.stages(count)`` as a list.

    Raises InputError if that is not one function or module per stage.
    """
    value: Any = source.stages(count)
    stages = list(value) if isinstance(value, Iterable) else []
    if len(stages) != count or not all(map(callable, stages)):
        raise InputError(
            f"{type(source).__name__}.stages({count}): expected a list of {count} functions that "
            f"return a module, got {_shown(value)}"
        )
    return stages


Place: TypeAlias = Callable[[Stage, int], nn.Module]
"""A function of a stage and its number that creates the stage's module on this rank."""


def on_device(device: torch.device, dtype: torch.dtype | None) -> Place:
    """Returns a :data:`Place` that creates stages on ``device``.

    If ``dtype`` is not None, their floating-point parameters and buffers are converted to it.
    """
    return lambda stage, number: made(stage, number).to(device=device, dtype=dtype)


def placed_stages(source: ModelSource, count: int, place: Place | None) -> Sequence[Stage]:
    """Returns ``source.stages(count)``, checked by :func:`checked_stages`.

    If ``place`` is given, each stage that is a function becomes a function that calls ``place`` to
    create the module. For stages that are modules, ``place`` is called immediately, so that the
    pipeline sees which parameters they share.
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

    Errors of other types are ignored here: they occur again on the ranks, whose messages say
    where. Under torchrun nothing is checked, as this process is itself a rank.
    """
    try:
        if "RANK" not in os.environ:
            checked_stages(source, count)
    except InputError:
        raise
    except Exception:
        pass


MOST_CHUNKS = 64
"""The highest number of stages per rank that the planner tries in any placement."""


def most_stages(source: ModelSource, count: int) -> int | None:
    """Returns the largest number of stages into which a plan may cut ``source``.

    ``count``: a number of stages that is known to be possible. As placements cut each of these
    stages into equally many pieces, the function tries multiples of ``count`` up to the first one
    that is impossible, and returns the largest possible number below it. (Numbers above it may be
    possible as well, if the number of stages must divide the number of layers.) Returns None, which
    means no limit, if all multiples up to :data:`MOST_CHUNKS` times ``count`` are possible.
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
    """Returns the inputs and the targets of ``source.batch(step, microbatches)``.

    ``method``: the source's method to call instead of ``batch``, for example ``eval_batch``. Raises
    InputError unless it returns one tensor per microbatch for inputs and for targets.
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
