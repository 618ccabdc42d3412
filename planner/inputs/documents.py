"""Files or objects: what the functions of the library take, and how their messages call it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from pipeloom.ir.documents import Document, FilePath, named
from pipeloom.ir.errors import InputError, InvalidScheduleError

if TYPE_CHECKING:
    from pipeloom.ir.model.program import Program
    from pipeloom.ir.model.schedule import Schedule

__all__ = ["Document", "FilePath", "named"]

PICTURES = {".svg": "svg", ".html": "html", ".png": "png", ".trace.json": "trace", ".txt": "text"}
"""Kinds of pictures by the end of a file's name."""


@runtime_checkable
class Planned(Protocol):
    """An object that has a schedule: a program, or an answer of ``optimize``."""

    @property
    def schedule(self) -> Schedule: ...


def read_document(given: Document, name: str) -> tuple[dict[str, Any], str]:
    """The JSON object, and how messages call it: its file, or ``name`` where it comes from none.

    Raises InputError where the file cannot be read.
    """
    from pipeloom.ir.formats import json_reader

    return json_reader.read_document(given, name)


def read_schedule(
    given: Schedule | Planned | Document, *, compiled: bool = False, where: str = "schedule"
) -> tuple[Schedule, str]:
    """The schedule, or with ``compiled`` the one that a program was made from, and how messages
    call it; ``where``: so an object is called.

    Raises InputError where a file or a document is wrong.
    """
    from pipeloom.ir.formats import PROGRAM, parse_program, parse_schedule
    from pipeloom.ir.model.program import Program
    from pipeloom.ir.model.schedule import Schedule

    if isinstance(given, Schedule):
        return given, "schedule"
    if isinstance(given, Planned):
        return given.schedule, "program" if isinstance(given, Program) else "schedule"
    document, where = read_document(given, where)
    if compiled and document.get("format") == PROGRAM:
        return parse_program(document, where).schedule, where
    return parse_schedule(document, where), where


def read_program(given: Program | Document) -> tuple[Program, str]:
    """The program, and how messages call it. Raises InputError where the file is wrong."""
    from pipeloom.ir.formats import parse_program
    from pipeloom.ir.model.program import Program

    if isinstance(given, Program):
        return given, "program"
    document, where = read_document(given, "program")
    return parse_program(document, where), where


@contextmanager
def naming(where: str, *options: str) -> Iterator[None]:
    """Puts ``where``, a file's name, in front of each fault that is found in what was read from
    it; not of a fault that begins with the name of one of ``options``, or with ``--``."""
    try:
        yield
    except InputError as error:
        lines = error.errors
        raise InputError(*(x if _is_of(x, options) else f"{where}: {x}" for x in lines)) from None
    except InvalidScheduleError as error:
        raise InvalidScheduleError([f"{where}: {line}" for line in error.violations]) from None


def _is_of(line: str, options: tuple[str, ...]) -> bool:
    """Whether a fault is an option's: ``tied[0]: ...`` is of ``tied``."""
    return line.startswith("--") or line.partition(":")[0].partition("[")[0] in options
