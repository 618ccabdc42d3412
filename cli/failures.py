"""Error messages and exit codes, for all commands."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TextIO

from pipeloom.ir import errors

INTERRUPTED, INTERNAL, FAILED = 130, 70, 1
MOST_LINES, MOST_CHARACTERS = 20, 400
TRACEBACK = "PIPELOOM_TRACEBACK"
STANDARD_INPUT = "standard input"
_VARIABLE = re.compile(r"[A-Z]+(_[A-Z]+)*: ")
"""Lines about an environment variable begin with its name."""
INPUTS = ("profile", "schedule", "file", "files", "program")
"""The arguments that can be input files. A fault without a file is assumed to be about the first of
these arguments that was given."""


def tell(error: BaseException, *, as_json: bool) -> int:
    """Print an error to standard error, and return the exit code for it.

    At most ``MOST_LINES`` lines are printed. With ``as_json``, a JSON object with all lines is
    printed to standard output as well.
    """
    lines, code = _lines(error)
    if isinstance(error, errors.OutputError):
        _forget(sys.stdout)
    for line in lines[:MOST_LINES]:
        say(line)
    if len(lines) > MOST_LINES:
        say(f"and {len(lines) - MOST_LINES} more (--json lists all)")
    if os.environ.get(TRACEBACK) and getattr(error, "details", ""):
        print(error.details, file=sys.stderr)  # type: ignore[attr-defined]
    if as_json:
        with suppress(OSError):
            print(json.dumps(_answer(error, lines)))
    return code


def _lines(error: BaseException) -> tuple[list[str], int]:
    if isinstance(error, errors.PipeloomError):
        return list(error.lines), error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return [f"interrupted{str(error) or '; nothing was written'}"], INTERRUPTED
    if isinstance(error, OSError) and error.strerror:
        where = f"{os.fsdecode(error.filename)}: " if error.filename else ""
        return [f"{where}{error.strerror}"], FAILED
    if isinstance(error, MemoryError):
        return [f"not enough memory {error}".rstrip()], FAILED
    words = " ".join(str(error).split())
    return [
        f"internal error: {type(error).__name__}: {words} ({TRACEBACK}=1 shows where)"
    ], INTERNAL


def _answer(error: BaseException, lines: list[str]) -> dict[str, Any]:
    if isinstance(error, errors.InfeasibleError):
        return error.to_dict()
    if isinstance(error, errors.InvalidScheduleError):
        return {"status": "invalid", "violations": lines}
    found: dict[str, Any] = {"error": lines}
    if isinstance(error, errors.InputError):
        found["faults"] = [fault.to_dict() for fault in error.faults]
    return found


def say(line: str) -> None:
    """Print ``line`` to standard error in the form that :func:`one_line` returns."""
    with suppress(OSError):
        print(one_line(line), file=sys.stderr)


def one_line(text: str) -> str:
    """``text`` with the prefix ``pipeloom:``, as one line in which control characters are escaped.

    Text with more than :data:`MOST_CHARACTERS` characters is cut, and the number of missing
    characters is appended.
    """
    shown = errors.printable(text)
    more = len(shown) - MOST_CHARACTERS
    if more > 0:
        shown = f"{shown[:MOST_CHARACTERS]}... ({more} more characters)"
    return f"pipeloom: {shown}"


def with_file(
    error: errors.InputError, given: Mapping[str, Any], words: Sequence[str]
) -> errors.InputError:
    """A copy of ``error`` whose faults name the command's input file.

    A fault that names a file or a word of the command line already is not changed. ``given``: the
    values of the command's arguments, by name. ``words``: the words of the command line.
    """
    files = next((given[key] for key in INPUTS if given.get(key)), None)
    if files is None:
        return error
    where = files if isinstance(files, str) else ", ".join(files)
    where = STANDARD_INPUT if where == "-" else where
    named = [STANDARD_INPUT, *filter(_is_file, (word.rpartition("=")[2] for word in words))]
    typed = tuple(f"{word.removeprefix('--model=')}: " for word in words)

    def in_file(fault: errors.Fault) -> errors.Fault:
        known = str(fault).startswith(typed) or _names(str(fault), named)
        return fault if known else fault.within(where)

    return error.changed(in_file)


def _is_file(word: str) -> bool:
    return "/" in word or "." in word or (word != "" and os.path.lexists(word))


def _names(line: str, files: Sequence[str]) -> bool:
    return (
        line.startswith("-")
        or _VARIABLE.match(line) is not None
        or line.endswith(": no such file")
        or any(file in line for file in files)
    )


def delivered(code: int) -> int:
    """Flush standard output, and return ``code`` as the exit code.

    If standard output cannot be written, an error is printed, and the result is at least 1.
    """
    try:
        with errors.standard_output():
            sys.stdout.flush()
    except errors.OutputError as error:
        return max(code, tell(error, as_json=False))
    try:
        sys.stderr.flush()
    except OSError:
        _forget(sys.stderr)
    return code


def _forget(stream: TextIO) -> None:
    """Redirect ``stream`` to the null device, so that Python does not fail to flush it at exit."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def closed_streams() -> bool:
    """Whether standard output is closed; if so, this is reported on standard error.

    If standard error is closed, it is replaced by the null device.
    """
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123 - for all of the process
    if sys.stdout is None:
        say("standard output: is closed; expected a file, a pipe or a terminal")
    return sys.stdout is None
