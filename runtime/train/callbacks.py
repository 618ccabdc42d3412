"""Reports the steps of a run: calls callbacks, and writes lines to standard error."""

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
    """Returns the name of the callback, for error messages, and the callback itself.

    A string ``MODULE:ATTRIBUTE`` names a function, or a class of which an object is created without
    arguments. Raises InputError if it does not exist or the result cannot be called.
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
    """A context that turns an error of a callback into an ExecutionError that names the callback.

    ``where``: where it failed, such as "step 3".
    """
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
    """A context whose value is a function that calls all ``callbacks`` with a step's record.

    ``callbacks``: functions, or names ``MODULE:ATTRIBUTE``. ``progress``: whether it also writes a
    line about the step to standard error. On exit, the method ``close`` of each callback that has
    one is called. If a callback raises, an ExecutionError that names it is raised. Under torchrun,
    callbacks are called only in the first process.
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
    """Writes a line about the step to standard error.

    If the record contains a note, writes it as another line.
    """
    evaluated = "" if record.eval_loss is None else f", eval {record.eval_loss:.4f}"
    words = f"loss {record.loss:.4f}{evaluated}, {record.seconds * 1e3:.1f} ms"
    note = "" if record.note is None else f"note: {record.note}\n"
    sys.stderr.write(f"step {record.step}: {words}\n{note}")
