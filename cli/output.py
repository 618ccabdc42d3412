"""Output of a command's answer: documents, summaries for people, and ``--json``."""

from __future__ import annotations

import json
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeloom.ir.errors import InputError, printable, standard_output

from .arguments import Command, WritingCommand
from .failures import INPUTS

if TYPE_CHECKING:
    from pipeloom.ir.model.schedule import Schedule

MOST_DRAWN = 16
"""Ranks in the picture of a schedule that is not written."""
READ = ("model", "start", "cluster", "partition", "measured")
"""Other arguments that may be files to read, beside the file of a placement."""


def check_output(command: WritingCommand) -> None:
    """Fails before the work where its result could not be written."""
    from pipeloom.ir.formats import check_writable

    if command.output == "-" and command.json:
        raise InputError("output: expected a file together with --json, got - (standard output)")
    if command.output is not None and command.output != "-":
        check_apart(command, "output", command.output)
        check_writable(command.output)


def check_apart(command: Command, option: str, path: str) -> None:
    """Raises InputError where the option's file is one that the command reads: it would be lost."""
    given = [getattr(command, key, None) for key in (*INPUTS, *READ)]
    for read in (*given, getattr(getattr(command, "placement", None), "name", None)):
        for file in [read] if isinstance(read, str) else read or ():
            if isinstance(file, str) and _is_one_file(file, path):
                raise InputError(f"{option}: expected another file than what is read, got {path}")


def _is_one_file(one: str, other: str) -> bool:
    try:
        return Path(other).is_file() and Path(one).samefile(other)
    except OSError:
        return False


def check_folder(path: str | None, file: str) -> None:
    """Fails where ``file`` could not be written in the folder of ``--output``, and leaves none."""
    from pipeloom.ir.formats import check_writable
    from pipeloom.planner.folders import made

    if path is None:
        return
    folder = Path(path)
    absent = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        check_writable(str(made(folder) / file))
    finally:
        for place in absent:
            with suppress(OSError):  # others have put something there
                place.rmdir()


def print_json(answer: dict[str, Any]) -> None:
    with standard_output():
        print(json.dumps(answer, allow_nan=False))


def say_words(words: object, *, aside: bool = False) -> None:
    """Prints words for people; ``aside``: to standard error, where nothing depends on it.

    Of what names of files hold a terminal gets no control characters.
    """
    shown = printable(str(words), keep="\n")
    with suppress(OSError) if aside else standard_output():
        print(shown, file=sys.stderr if aside else sys.stdout)


def answer(command: Command, facts: dict[str, Any], words: object) -> None:
    """Prints ``facts`` with ``--json``, else ``words``."""
    if command.json:
        print_json(facts)
    else:
        say_words(words)


def finish(
    command: WritingCommand,
    document: dict[str, Any],
    facts: dict[str, Any],
    words: str,
    schedule: Schedule | None = None,
) -> None:
    """Writes the document, then answers: ``facts`` with ``--json``, else ``words``.

    Without ``-o`` the document goes to standard output and the words to standard error; with
    ``--json`` and without ``-o`` it is not written. Nor is it on a terminal, for which it is too
    long: there the words, a picture of the ``schedule`` and how to write the document are printed.
    """
    from pipeloom.ir.formats import write_json

    output, to_stdout = command.output, command.output in (None, "-")
    if output is None and not command.json and sys.stdout.isatty():
        parts = [words, *_small_picture(schedule), "not written: -o FILE writes it, -o - prints it"]
        say_words("\n\n".join(parts))
        return
    if not (to_stdout and command.json):
        write_json(document, output or "-")
    if command.json:
        print_json({"output": output, **facts})
        return
    say_words(words, aside=to_stdout)
    if not to_stdout:
        say_words(f"written to {output}")


def finish_schedule(command: WritingCommand, schedule: Schedule) -> None:
    """:func:`finish` for a schedule, whose report is the answer."""
    from pipeloom.ir.formats import dump_schedule
    from pipeloom.report.summaries import describe, facts

    document = dump_schedule(schedule)
    finish(command, document, describe(document), facts(schedule), schedule)


def _small_picture(schedule: Schedule | None) -> list[str]:
    """A picture in the terminal; none of many ranks."""
    from pipeloom.report.timeline_text import bare_timeline

    if schedule is None or schedule.problem.ranks > MOST_DRAWN:
        return []
    return [bare_timeline(schedule, shutil.get_terminal_size().columns)]
