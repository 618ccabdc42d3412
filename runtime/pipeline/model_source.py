"""Model sources: a user's model cut into stages, with its loss, data and optimizer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from pipeloom.ir.errors import InfeasibleError, InputError, in_words
from pipeloom.ir.formats.json_reader import read_json
from pipeloom.ir.formats.packing_document import parse_lengths
from pipeloom.ir.units import counted

from ..rank.options import ModelNames, Options
from ..stages.store import Stage


class ModelSource(Protocol):
    """A model that can be cut into any number of stages, and what it takes to train it."""

    def stages(self, count: int) -> Sequence[Stage]:
        """One a stage: a function that returns its module, called only where the stage is needed.

        Its weights are the same wherever it is called. Modules are taken too; every process then
        makes all of them.
        """
        ...

    def tied(self, count: int) -> Sequence[Sequence[tuple[int, str]]]:
        """Groups of (stage, parameter name) that are one parameter."""
        ...

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """The mean loss over one microbatch, a scalar."""
        ...

    def batch(self, step: int, microbatches: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        """Inputs and targets of one training step, one of each a microbatch."""
        ...

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        """A fresh optimizer for some of the model's parameters."""
        ...


def skips_of(source: ModelSource, count: int) -> Sequence[tuple[int, int]]:
    """Pairs of stages, as :class:`Pipeline` takes them, from the optional method ``skips``."""
    skips: Callable[[int], Sequence[tuple[int, int]]] | None = getattr(source, "skips", None)
    return () if skips is None else skips(count)


def names_of(source: ModelSource, count: int) -> ModelNames | None:
    """The names of stages' parameters in the whole model, as :class:`Pipeline` takes them, from the
    optional method ``names``."""
    names: Callable[[int], ModelNames] | None = getattr(source, "names", None)
    return None if names is None else names(count)


def options_of(source: ModelSource, count: int, *, train: bool = True) -> Options:
    """The options of a :class:`Pipeline` that a source of ``count`` stages gives; its optimizer to
    ``train`` alone."""
    return {
        "loss": source.loss,
        "optimizer": source.optimizer if train else None,
        "tied": source.tied(count),
        "skips": skips_of(source, count),
        "names": names_of(source, count),
    }


BATCH, EVAL_BATCH, PACKED = "batch", "eval_batch", "packed"
LENGTHS = "lengths"


def check_evaluation(source: ModelSource) -> None:
    """Raises InputError where the source has nothing to be evaluated on, or something wrong."""
    if not callable(getattr(source, EVAL_BATCH, None)):
        raise InputError(
            f"eval_every: expected a model source with {EVAL_BATCH}(step, microbatches), which "
            f"gives inputs and targets as batch does; {type(source).__name__} has none"
        )
    checked_batch(source, 0, 1, EVAL_BATCH)


def checked_stages(source: ModelSource, count: int) -> list[Stage]:
    """``source.stages(count)``. Raises InputError where that is not one a stage."""
    value: Any = source.stages(count)
    name, wanted = f"{_of(source)}stages({count})", f"{count} functions that return a module"
    if not isinstance(value, Iterable):
        raise InputError(f"{name}: expected a list of {wanted}, got {_shown(value)}")
    stages = list(value)
    if len(stages) != count:
        raise InputError(f"{name}: expected {wanted}, got {len(stages)}")
    for s, stage in enumerate(stages):
        if not callable(stage):
            raise InputError(
                f"{name}[{s}]: expected a function that returns a module, got {_shown(stage)}"
            )
    return stages


def check_cut(source: ModelSource, count: int) -> None:
    """Raises InputError where the source cannot be cut into ``count`` stages, before processes
    start. What else it raises is left to the ranks, which report where; torchrun's check their own
    cut anyway."""
    if "RANK" in os.environ:
        return
    try:
        checked_stages(source, count)
    except InputError:
        raise
    except Exception:
        return


def has_lengths(source: ModelSource) -> bool:
    """Whether the source's batches are sequences to be packed: ``lengths(step)`` is a batch's
    lengths file or its object, ``packed(step, rows)`` what ``batch`` is of microbatches of these
    sequences. Raises InputError where one of the two methods is missing."""
    there = [name for name in (LENGTHS, PACKED) if callable(getattr(source, name, None))]
    if len(there) == 1:
        raise InputError(
            f"{_of(source)}{there[0]}: expected both lengths(step) and packed(step, rows), which "
            f"go together, or neither, got {there[0]} alone"
        )
    return bool(there)


def lengths_at(source: ModelSource, step: int) -> Any:
    """``source.lengths(step)``, of a source that has that method. Raises InputError for what that
    raises, and for what is neither a file nor an object."""
    lengths: Callable[[int], Any] = getattr(source, LENGTHS)
    try:
        found = lengths(step)
    except Exception as error:
        raise InputError(in_words(error)) from error
    if not isinstance(found, str | os.PathLike | Mapping):
        raise InputError(f"expected a lengths file or its object, got {_shown(found)}")
    return found


@contextmanager
def naming_lengths(source: ModelSource, step: int, *options: str) -> Iterator[None]:
    """Puts the method and its step in front of each fault of what it gives; not of a fault that
    begins with the name of one of ``options``."""
    where = f"{_of(source)}{LENGTHS}({step})"
    try:
        yield
    except InputError as error:
        lines = (x if x.partition(":")[0] in options else f"{where}: {x}" for x in error.errors)
        raise InputError(*lines) from error.__cause__
    except InfeasibleError as error:
        error.args = (f"{where}: {error}",)
        raise


def check_lengths(source: ModelSource, step: int, planned: Sequence[int]) -> None:
    """Raises InputError where the step's sequences are not those of the ``planned`` lengths."""
    with naming_lengths(source, step):
        given = lengths_at(source, step)
        named = "lengths" if isinstance(given, Mapping) else os.fspath(given)
        document = dict(given) if isinstance(given, Mapping) else read_json(named)
        pairs = zip_longest(planned, parse_lengths(document, named).lengths, fillvalue="none")
        for at, (expected, found) in enumerate(pairs):
            if found != expected:
                raise InputError(
                    f"{named}: lengths[{at}]: expected {expected}, as the program's microbatches "
                    f"were packed, got {found} (tune packs each step's sequences anew)"
                )


def checked_batch(
    source: ModelSource, step: int, microbatches: int | Sequence[Sequence[int]], method: str = BATCH
) -> tuple[list[Tensor], list[Tensor]]:
    """``source.batch(step, microbatches)``, or that of the optional methods ``eval_batch``, or
    ``packed``, which takes the sequences of each microbatch.

    Raises InputError where it is not what it should be.
    """
    value: Any = getattr(source, method)(step, microbatches)
    rows = not isinstance(microbatches, int)
    microbatches = len(microbatches) if not isinstance(microbatches, int) else microbatches
    name = f"{_of(source)}{method}({step}, {'rows' if rows else microbatches})"
    if not (isinstance(value, Sequence) and len(value) == 2):
        raise InputError(f"{name}: expected a pair, inputs and targets, got {_shown(value)}")
    inputs, targets = value
    return (
        _microbatches(inputs, microbatches, f"{name}: inputs"),
        _microbatches(targets, microbatches, f"{name}: targets"),
    )


def _microbatches(value: Any, count: int, name: str) -> list[Tensor]:
    wanted = f"expected a list of {counted(count, 'tensor')}, one a microbatch"
    if isinstance(value, Tensor):
        raise InputError(f"{name}: {wanted}, got {_shown(value)}: tensor.chunk({count}) cuts it")
    if not (isinstance(value, Sequence) and all(isinstance(x, Tensor) for x in value)):
        raise InputError(f"{name}: {wanted}, got {_shown(value)}")
    if len(value) != count:
        raise InputError(f"{name}: {wanted}, got {len(value)}")
    return list(value)


def _of(source: ModelSource) -> str:
    return f"{type(source).__name__}."


def _shown(value: object) -> str:
    if isinstance(value, Tensor):
        return f"one tensor {list(value.shape)}"
    if isinstance(value, list | tuple):
        kinds = sorted({type(item).__name__ for item in value})
        return f"a {type(value).__name__} of {len(value)} ({', '.join(kinds) or 'nothing'})"
    return type(value).__name__
