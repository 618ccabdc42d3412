"""Reading of files and objects that the library's functions accept, and the names by which messages
refer to them."""

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
"""The kind of picture for each ending of a file's name."""


@runtime_checkable
class Planned(Protocol):
    """An object that has a schedule: a program, or a result of ``optimize``."""

    @property
    def schedule(self) -> Schedule: ...


def read_document(given: Document, name: str) -> tuple[dict[str, Any], str]:
    """Return ``given`` as a JSON object, and its name in messages: the name of its file, or
    ``name`` if it was not read from a file.

    Raises InputError if the file cannot be read.
    """
    from pipeloom.ir.documents import json_reader

    return json_reader.read_document(given, name)


def read_schedule(
    given: Schedule | Planned | Document, *, compiled: bool = False, where: str = "schedule"
) -> tuple[Schedule, str]:
    """Return ``given`` as a schedule, and its name in messages: the name of its file; for a JSON
    object ``where``; for any other object "schedule" or "program".

    ``compiled``: also accept the file or the JSON object of a program, whose schedule is returned.
    Raises InputError if the input is invalid.
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
    """Return ``given`` as a program, and its name in messages: the name of its file, or "program"
    if it was not read from a file. Raises InputError if the file or object is invalid."""
    from pipeloom.ir.formats import parse_program
    from pipeloom.ir.model.program import Program

    if isinstance(given, Program):
        return given, "program"
    document, where = read_document(given, "program")
    return parse_program(document, where), where


@contextmanager
def naming(where: str, *options: str) -> Iterator[None]:
    """A context that puts ``where``, the name of the input, before the message of each fault that
    is raised within it.

    Faults that begin with one of the names ``options``, or with ``--``, remain unchanged.
    """
    try:
        yield
    except InputError as error:
        raise error.within(where, *options) from None
    except InvalidScheduleError as error:
        raise InvalidScheduleError([f"{where}: {line}" for line in error.violations]) from None
