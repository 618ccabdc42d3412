"""Reports of a run's steps: to callbacks, and as progress on standard error."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from pipeloom.ir.errors import InputError, in_brief
from pipeloom.ir.units import counted

from ..errors import ExecutionError
from ..models.by_name import load_attribute
from .loop import Compiling, Listener, StepRecord


def load_callback(name: str) -> Listener:
    """The function that ``module:attribute`` names, or an object of the class that it names.

    Raises InputError where there is none, or it cannot be called.
    """
    value = load_attribute(name)
    made: Any
    try:
        made = value() if isinstance(value, type) else value
    except Exception as error:
        words = in_brief(error)
        raise InputError(f"{name}: making it without arguments failed: {words}") from error
    if not callable(made):
        raise InputError(
            f"{name}: expected a function of a StepRecord, or a class whose objects are, got "
            f"{type(made).__name__}"
        )
    callback: Listener = made
    return callback


def _named(callback: Listener | str) -> tuple[str, Listener]:
    """The callback, loaded where it is a name, and its name."""
    if isinstance(callback, str):
        return callback, load_callback(callback)
    kind = callback if hasattr(callback, "__qualname__") else type(callback)
    return f"{kind.__module__}:{kind.__qualname__}", callback


@contextmanager
def _as_failure(name: str, where: str) -> Iterator[None]:
    """Makes an error of a callback one line that names it: the run has failed (exit code 1)."""
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
def listening(callbacks: Sequence[Listener | str], steps: int | None) -> Iterator[Listener]:
    """A function that tells all ``callbacks``, whose ``close``, where they have one, comes last.

    Names are loaded by :func:`load_callback`. The listener raises ExecutionError where a callback
    raises, which it names. ``steps``: progress is shown, to so many of them;
    None: none is. Of processes that torchrun started the first one alone has callbacks.
    """
    if os.environ.get("RANK", "0") != "0":
        callbacks, steps = (), None
    shown = () if steps is None else (Bar(steps) if sys.stderr.isatty() else write_line,)
    with ExitStack() as held:
        named = [*map(_named, callbacks)]
        for name, callback in (*named, *(("progress", each) for each in shown)):
            held.callback(_close, name, callback)

        def listener(record: StepRecord | Compiling) -> None:
            if isinstance(record, StepRecord):
                for name, callback in named:
                    with _as_failure(name, f"step {record.step}"):
                        callback(record)
            for show in shown:
                show(record)

        yield listener


def write_line(record: StepRecord | Compiling) -> None:
    """One line per step, one for a note and one for all that is compiled."""
    if isinstance(record, Compiling):
        if record.done == record.count:
            sys.stderr.write(f"{_compiled(record)}\n")
        return
    note = "" if record.note is None else f"note: {record.note}\n"
    sys.stderr.write(f"step {record.step}: {_words(record)}\n{note}")


class Bar:
    """A bar of the steps done, on a terminal."""

    def __init__(self, steps: int) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
        self._progress = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True))
        self._task = self._progress.add_task("", total=steps)
        self._progress.start()

    def __call__(self, record: StepRecord | Compiling) -> None:
        if isinstance(record, Compiling):
            self._progress.update(self._task, description=_compiled(record))
            return
        words = _words(record)
        self._progress.update(self._task, completed=record.step + 1, description=words)
        if record.note is not None:
            self._progress.console.print(f"note: {record.note}", highlight=False)

    def close(self) -> None:
        self._progress.stop()


def _compiled(record: Compiling) -> str:
    count = counted(record.count, "function")
    return f"compiled {record.done} of {count} of the first rank's stages"


def _words(record: StepRecord) -> str:
    evaluated = "" if record.eval_loss is None else f", eval {record.eval_loss:.4f}"
    return f"loss {record.loss:.4f}{evaluated}, {record.seconds * 1e3:.1f} ms"
