"""A command prints with ``--json``, or with ``-o -``, what the function of its name gives.

``same.txt`` has the pairs: a command, its call, and files that are not as ``messages/files.py`` has
them.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

import pipeloom
from tests.conformance.messages import NAMES, Case, cases, files
from tests.support.command_line import called
from tests.support.inner import COMMANDS

ALL = list(cases(Path(__file__).with_name("same.txt").read_text(encoding="utf-8")))
PAIRS = [(command, call) for command, call in zip(ALL[::2], ALL[1::2], strict=True)]
IDS = [call.line for _, call in PAIRS]
TIMED = {"solve_seconds", "seconds", "file", "output"}
"""Keys that differ: how long a search took, and files that only a command has."""


def plain(answer: Any) -> Any:
    """``answer`` as JSON has it, without what is :data:`TIMED` and without empty lists of notes."""
    if isinstance(answer, dict):
        kept = {key for key in answer if key not in TIMED and (key, answer[key]) != ("notes", [])}
        return {key: plain(answer[key]) for key in kept}
    return [plain(one) for one in answer] if isinstance(answer, list | tuple) else answer


def printed(line: str, *more: str) -> str:
    return called(*shlex.split(line.removeprefix("$ ")), *more).out


def returned(call: str) -> Any:
    """What a function returns, or the error that it raises."""
    try:
        return eval(call.removeprefix(">>> "), NAMES | vars(files))
    except pipeloom.InfeasibleError as error:
        return error


def as_json(found: Any) -> Any:
    for kind in ("schedule", "program"):
        if type(found).__name__.lower() == kind:
            return getattr(pipeloom, f"dump_{kind}")(found)
    return found.to_dict() if hasattr(found, "to_dict") else found.document()


@pytest.fixture(autouse=True)
def _in_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PIPELOOM_CACHE", raising=False)


def write_files(command: Case, call: Case) -> None:
    Case(f"{command.line} {call.line}", call.files).write_files(Path())


@pytest.mark.parametrize(("command", "call"), PAIRS, ids=IDS)
def test_a_command_prints_what_its_function_gives(command: Case, call: Case) -> None:
    write_files(command, call)
    document = command.line.endswith(" -") or command.line.startswith("$ profile")
    answer = json.loads(printed(command.line, *([] if document else ["--json"])))
    assert plain(answer) == plain(json.loads(json.dumps(as_json(returned(call.line)))))


@pytest.mark.parametrize("command", ["compare", "sweep", "predict"])
def test_its_words_are_those_of_the_function(command: str) -> None:
    for asked, call in PAIRS:
        if asked.line.split()[1] == command:
            write_files(asked, call)
            shown = printed(asked.line, "-q") if command != "predict" else printed(asked.line)
            assert shown.startswith(f"{returned(call.line)}\n")


def test_every_command_that_answers_has_a_pair() -> None:
    assert {pair[0].line.split()[1] for pair in PAIRS} == {*COMMANDS} - {"run", "serve"}
