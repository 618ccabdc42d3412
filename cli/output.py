"""The output of a command: documents, summaries as text, and the objects printed with
``--json``."""

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
"""A schedule that is not written to a file is drawn in the terminal if it has at most this many
ranks."""
READ = ("model", "start", "cluster", "partition", "measured")
"""Further arguments that can be input files, besides :data:`.failures.INPUTS` and the placement."""


def check_output(command: WritingCommand) -> None:
    """Raise InputError if the output cannot be written; called before any work is done."""
    from pipeloom.ir.formats import check_writable

    if command.output == "-" and command.json:
        raise InputError("output: expected a file together with --json, got - (standard output)")
    if command.output is not None and command.output != "-":
        check_apart(command, "output", command.output)
        check_writable(command.output)


def check_apart(command: Command, option: str, path: str) -> None:
    """Raise InputError if ``path``, the value of ``option``, is an input file of the command.

    Writing to it would destroy the input.
    """
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
    """Raise InputError if ``file`` cannot be written in the folder ``path``.

    Folders that had to be created for this check are removed again. Nothing is checked if ``path``
    is None.
    """
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
            with suppress(OSError):  # the folder is no longer empty
                place.rmdir()


def print_json(answer: dict[str, Any]) -> None:
    with standard_output():
        print(json.dumps(answer, allow_nan=False))


def say_words(words: object, *, aside: bool = False) -> None:
    """Print text to standard output, or with ``aside`` to standard error.

    Failures to write to standard error are ignored. Control characters, for example in file names,
    are escaped.
    """
    shown = printable(str(words), keep="\n")
    with suppress(OSError) if aside else standard_output():
        print(shown, file=sys.stderr if aside else sys.stdout)


def answer(command: Command, facts: dict[str, Any], words: object) -> None:
    """Print ``facts`` as a JSON object if ``--json`` was given, otherwise ``words`` as text."""
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
    """Write ``document``, then print ``facts`` with ``--json``, otherwise ``words``.

    The document is written to the file given by ``-o``. Without ``-o``, there are three cases: with
    ``--json``, only the facts are printed; if standard output is a terminal, the words, a picture
    of ``schedule`` and a hint on ``-o``; otherwise, the document is printed to standard output, and
    the words to standard error.
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
    """Call :func:`finish` with ``schedule`` as the document.

    The facts and the words are the schedule's sizes, costs and proven quality.
    """
    from pipeloom.ir.formats import dump_schedule
    from pipeloom.report.summaries import describe, facts

    document = dump_schedule(schedule)
    finish(command, document, describe(document), facts(schedule), schedule)


def _small_picture(schedule: Schedule | None) -> list[str]:
    """A list with a picture of the schedule for the terminal.

    It is empty if there is no schedule, or if it has more than :data:`MOST_DRAWN` ranks.
    """
    from pipeloom.report.timeline_text import bare_timeline

    if schedule is None or schedule.problem.ranks > MOST_DRAWN:
        return []
    return [bare_timeline(schedule, shutil.get_terminal_size().columns)]
