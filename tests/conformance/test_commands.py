"""Every command of the parser explains itself, and answers what cannot be in the same way."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from pipeloom import load_program
from tests.fuzz.cases import sound_lines
from tests.support.command_line import Done, called
from tests.support.inner import COMMANDS
from tests.support.processes import ENVIRONMENT

FULL = Path("/dev/full")
UNWRITTEN = "pipeloom: standard output: cannot be written: No space left on device\n"
NOTHING_FULL = pytest.mark.skipif(not FULL.exists(), reason="no device that is always full")
OTHERS = {
    "a list": ["build", "--list"],
    "a document": ["build", "zb-h1", "{profile}", "-m", "2", "-o", "-"],
    "a picture": ["show", "{schedule}", "--as", "svg"],
    "the overview": ["--help"],
    "the version": ["--version"],
}
WRITERS = ("profile", "optimize", "build", "predict", "compile", "export", "import")
"""Commands whose ``-o`` is a file of any name."""
Lines = dict[str, list[str]]
READERS = [name for name in COMMANDS if name != "serve"]
"""Commands that read a file and end; ``tests/web`` tests the other one."""


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Lines:
    """Words of each command, whose first file is ``sound-…``, and of the others."""
    folder = tmp_path_factory.mktemp("sound")
    found = sound_lines(folder)
    assert set(found) == set(READERS), "tests/fuzz/commands.txt has a line of each command"
    files = {kind: str(folder / f"sound-{kind}") for kind in ("profile", "schedule")}
    others = {name: [word.format(**files) for word in words] for name, words in OTHERS.items()}
    return found | others


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch, lines: Lines) -> None:
    """What ``run`` answers, without training."""
    from pipeloom import training
    from pipeloom.runtime import RunResult

    program, took = load_program(lines["run"][1]), ((1.0, 0.5), (0.1, 0.1))
    plan = program.schedule
    result = RunResult(*took, (1, 1), (None, None), measured=plan, planned=plan)
    monkeypatch.setattr(training, "run", lambda *_, **__: result)


def with_file(words: list[str], file: str) -> list[str]:
    """``words`` with another first file."""
    first = next(word for word in words if "sound-" in word)
    return [file if word == first else word for word in words]


def unread() -> IO[bytes]:
    """A pipe whose reader has left."""
    reader, writer = os.pipe()
    os.close(reader)
    return os.fdopen(writer, "wb")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example_of_the_command(name: str) -> None:
    done = called(name, "--help")
    assert (done.code, done.err) == (0, "")
    assert f"pipeloom {name}" in done.out.split("example:\n")[1]
    assert "--json" in done.out


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("kind", ["missing", "another kind", "a folder"])
def test_a_file_that_cannot_be_read_is_a_line_and_the_same_in_json(
    lines: Lines, tmp_path: Path, name: str, kind: str
) -> None:
    file = tmp_path / "other.json"
    if kind == "another kind":
        file.write_text('{"format": "pipeloom.nothing", "version": 1}')
    elif kind == "a folder":
        file.mkdir()
    words = with_file(lines[name], str(file))
    done, again = called(*words), called(*words, "--json")
    assert done.refusal.startswith(f"pipeloom: {file}")
    assert (again.code, again.err) == (2, done.err)
    assert [f"pipeloom: {each}" for each in again.json["error"]] == [done.refusal]


@pytest.mark.parametrize("name", READERS)
def test_standard_input_is_a_file(lines: Lines, name: str) -> None:
    first = next(word for word in lines[name] if "sound-" in word)
    whole = called(*lines[name])
    piped = called(*with_file(lines[name], "-"), given=Path(first).read_bytes())
    named = untimed(whole.out).replace(first, "standard input")
    answered = untimed(piped.out).replace("'standard input'", "standard input")
    answered = answered.replace("predict - ", "predict standard input ")
    assert (piped.code, answered) == (whole.code, named)


def untimed(answer: str) -> str:
    """``answer`` without how long a search took."""
    return re.sub(r'"(solve_)?seconds": ?[^,}]*|[\d.]+ s\b', "", answer)


@pytest.mark.parametrize("name", WRITERS)
def test_output_that_cannot_be_written(lines: Lines, tmp_path: Path, name: str) -> None:
    nowhere = tmp_path / "absent" / "x.json"
    no_folder = f"there is no folder {nowhere.parent}"
    for place, why in (tmp_path, "Is a directory"), (nowhere, no_folder):
        done = called(*lines[name], "-o", place)
        assert (done.code, done.out) == (2, "")
        assert done.err.splitlines()[-1] == f"pipeloom: {place}: cannot be written: {why}"


@NOTHING_FULL
@pytest.mark.usefixtures("trained")
@pytest.mark.parametrize("as_json", [False, True], ids=["words", "json"])
@pytest.mark.parametrize("name", [*READERS, *OTHERS])
def test_output_that_is_not_taken_is_one_line_or_silence(
    lines: Lines, name: str, as_json: bool
) -> None:
    words = [*lines[name], *(["--json"] if as_json and name in COMMANDS else [])]
    # a raw file is written at once, another when it is flushed
    sinks = FULL.open("wb", buffering=0 if as_json else -1), unread()
    for sink, lines_of_it in zip(sinks, (1, 0), strict=True):
        done = called(*words, sink=sink)
        assert (done.code, done.err.count(UNWRITTEN)) == (1, lines_of_it)
        assert not re.search("Traceback|internal error|Broken pipe", done.err)


@NOTHING_FULL
@pytest.mark.parametrize("name", COMMANDS)
def test_help_that_is_not_taken(name: str) -> None:
    assert called(name, "--help", sink=FULL.open("wb")) == Done(1, "", UNWRITTEN)


HELP = f"""
import sys
from pipeloom.__main__ import command
for name in {list(COMMANDS)}:
    sys.argv = ["pipeloom", name, "--help"]
    try:
        command()
    except SystemExit as ended:
        heavy = {{"numpy", "numba", "ortools", "pulp", "networkx", "pydantic", "torch"}}
        heavy |= {{"starlette", "uvicorn"}}
        print(name, heavy & {{*sys.modules}} or "nothing", ended.code, file=sys.stderr)
"""


def test_help_imports_nothing_heavy() -> None:
    words = [sys.executable, "-c", HELP]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=ENVIRONMENT)
    assert done.stderr.splitlines() == [f"{name} nothing 0" for name in COMMANDS]
