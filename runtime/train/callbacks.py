"""Reports of a run's steps: calls callbacks, and writes lines to standard error."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from pipeloom.ir.errors import InputError, in_brief

from ..errors import ExecutionError
from ..models.by_name import load_attribute
from .loop import Listener, StepRecord


def _named(callback: Listener | str) -> tuple[str, Listener]:
    """Returns the callback with its name.

    A string ``module:attribute`` names a function, or a class, which is called without arguments.
    Raises InputError if it does not exist or cannot be called.
    """
    if not isinstance(callback, str):
        kind = callback if hasattr(callback, "__qualname__") else type(callback)
        return f"{kind.__module__}:{kind.__qualname__}", callback
    value = load_attribute(callback)
    try:
        made: Any = value() if isinstance(value, type) else value
    except Exception as error:
        words = in_brief(error)
        raise InputError(f"{callback}: making it without arguments failed: {words}") from error
    if not callable(made):
        raise InputError(
            f"{callback}: expected a function of a StepRecord, or a class whose objects are, got "
            f"{type(made).__name__}"
        )
    return callback, made


@contextmanager
def _as_failure(name: str, where: str) -> Iterator[None]:
    """Turns an error of a callback into an ExecutionError that names it (exit code 1)."""
    try:
        yield
    except Exception as error:
        raise ExecutionError(f"callback {name}: {where}: {in_brief(error)}") from error


def _close(name: str, callback: Any) -> None:
    close = getattr(callback, "close", None)
    if callable(close):
        with _as_failure(name, "close"):
            close()


@contextmanager
def listening(callbacks: Sequence[Listener | str], *, progress: bool) -> Iterator[Listener]:
    """A context with a function that calls all ``callbacks`` with a step's record.

    With ``progress``, it also writes a line. At the end, each callback's ``close()`` is called, if
    it has one. The function raises ExecutionError with the name of a callback that raises. Under
    torchrun, only the first process calls the callbacks.
    """
    if os.environ.get("RANK", "0") != "0":
        callbacks, progress = (), False
    with ExitStack() as held:
        named = [*map(_named, callbacks)]
        for name, callback in named:
            held.callback(_close, name, callback)

        def listener(record: StepRecord) -> None:
            for name, callback in named:
                with _as_failure(name, f"step {record.step}"):
                    callback(record)
            if progress:
                write_line(record)

        yield listener


def write_line(record: StepRecord) -> None:
    """Writes a line about the step to standard error, and one with its note."""
    evaluated = "" if record.eval_loss is None else f", eval {record.eval_loss:.4f}"
    words = f"loss {record.loss:.4f}{evaluated}, {record.seconds * 1e3:.1f} ms"
    note = "" if record.note is None else f"note: {record.note}\n"
    sys.stderr.write(f"step {record.step}: {words}\n{note}")
