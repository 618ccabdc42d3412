"""What users are told: each case of ``golden.txt`` is a command or a call, small files, its lines.

A case is ``$ WORDS`` of a command line, or ``>>> EXPRESSION`` of Python with the public names of
``pipeloom``; then ``< FILE = EXPRESSION`` for files that are not as :data:`.files.SOUND` has them;
then the answer, a line each: ``code | key | file | text``. Write the answers anew with
``python -m tests.conformance.messages``, and read what has changed before you commit it.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import chdir
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import pipeloom
from tests.support.command_line import called

from . import files

GOLDEN = Path(__file__).with_name("golden.txt")
ANSWER = re.compile(r"^\w+ \| ")
KEY = re.compile(r"(argument )?[-\w\[\]./]+")
FILE = re.compile(r"standard input|[\w/]*\.(json|csv|txt|yaml)|absent/?")
CHOICES = re.compile(r"(?<=\(choose from )[^)]*")  # Python's versions quote them differently
VARIABLE = re.compile(r"([A-Z_]+)=(.*)")
NAMES = {name: getattr(pipeloom, name) for name in dir(pipeloom) if name.islower()}


@dataclass(frozen=True)
class Case:
    """A command or a call, the expressions of its files, and the lines of its answer."""

    line: str
    files: dict[str, str] = field(default_factory=dict)
    answer: list[str] = field(default_factory=list)

    def write_files(self, folder: Path) -> None:
        """Writes the files that the case names or has."""
        for name, expression in (files.SOUND | self.files).items():
            if name != "-" and (name in self.line or name in self.files):
                (folder / name).parent.mkdir(exist_ok=True)
                (folder / name).write_bytes(files.content(expression))


def cases(text: str) -> Iterator[Case]:
    """The cases of a golden file."""
    found: Case | None = None
    for line in text.splitlines():
        if line.startswith(("$ ", ">>> ")):
            if found is not None:
                yield found
            found = Case(line)
        elif found is not None and line.startswith("< "):
            name, _, expression = line.removeprefix("< ").partition(" = ")
            found.files[name] = expression
        elif found is not None and ANSWER.match(line):
            found.answer.append(line)
    if found is not None:
        yield found


def answer(case: Case, folder: Path) -> list[str]:
    """The lines of a case in ``folder``, which holds what it did before if input is refused."""
    case.write_files(folder)
    before = content(folder)
    with chdir(folder), patch.dict(os.environ):
        os.environ.pop("PIPELOOM_CACHE", None)
        code, lines = raised(case.line) if case.line.startswith(">") else run(case)
    assert code != "2" or content(folder) == before, "input is refused, and a file written"
    return [in_columns(code, line) for line in lines] or [f"{code} |  |  |"]


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def run(case: Case) -> tuple[str, list[str]]:
    """The exit code of a command and its lines on standard error; those of tables are left out."""
    words = shlex.split(case.line.removeprefix("$ "))
    while variable := VARIABLE.fullmatch(words[0]):
        os.environ[variable[1]] = variable[2]
        del words[0]
    words = [word.replace("NINES", "9" * 5000) for word in words]
    done = called(*words, given=files.content(case.files.get("-", "''")))
    told = [CHOICES.sub("...", x) for x in done.err.splitlines() if x[:10] == "pipeloom: "]
    assert done.code != 2 or bool(done.out) is ("--json" in words), "refused, and answered"
    return str(done.code), [line.removeprefix("pipeloom: ") for line in told]


def raised(line: str) -> tuple[str, Iterable[str]]:
    """What a call raises: the exit code that a command would have, or the error's name."""
    try:
        eval(line.removeprefix(">>> "), NAMES | vars(files))
    except pipeloom.PipeloomError as error:
        return str(error.exit_code), error.lines
    except (TypeError, AttributeError) as error:
        return type(error).__name__, str(error).splitlines()
    return "0", ()


def in_columns(code: str, line: str) -> str:
    """``line`` as ``code | key | file | text``."""
    note, text = ("note: ", line[6:]) if line.startswith("note: ") else ("", line)
    keys, file = [], ""
    while True:
        begins, found, rest = text.partition(": ")
        if found and not file and FILE.fullmatch(begins):
            file = begins
        elif found and KEY.fullmatch(begins):
            keys.append(begins)
        else:
            return f"{code} | {': '.join(keys)} | {file} | {note}{text}"
        text = rest


def written_anew(text: str, answers: Mapping[int, list[str]]) -> str:
    """``text`` with the answers of its cases, by number, in place of those that it has."""
    number, lines = -1, list[str]()
    pending: list[str] = []
    for line in [*text.splitlines(), "$ "]:
        if pending and not line.startswith("< ") and not ANSWER.match(line):
            lines += pending
            pending = []
        if line.startswith(("$ ", ">>> ")):
            number += 1
            pending = answers.get(number, [])
        if not ANSWER.match(line):
            lines.append(line)
    return "\n".join(lines[:-1]) + "\n"
