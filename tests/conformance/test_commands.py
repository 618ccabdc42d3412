"""Every command of the parser explains itself, and answers what cannot be in the same way."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from pathlib import Path
from typing import IO

import pytest

from pipeloom import load_program
from tests.fuzz.cases import sound_lines
from tests.support.inner import COMMANDS, main

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


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Lines:
    """Words of each command, whose first file is ``sound-…``, and of the others."""
    folder = tmp_path_factory.mktemp("sound")
    found = sound_lines(folder)
    assert set(found) == set(COMMANDS), "tests/fuzz/commands.txt has a line of each command"
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


def called(
    words: list[str], monkeypatch: pytest.MonkeyPatch, sink: IO[bytes] | None = None
) -> tuple[int, bytes, str]:
    """The exit code, output and standard error of a command, whose output may go to ``sink``."""
    err, raw = io.StringIO(), io.BytesIO() if sink is None else sink
    out = io.TextIOWrapper(raw, write_through=isinstance(raw, io.RawIOBase))
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    code = main(words)
    return code, raw.getvalue() if isinstance(raw, io.BytesIO) else b"", err.getvalue()


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
def test_help_has_an_example_of_the_command(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    code, out, err = called([name, "--help"], monkeypatch)
    assert (code, err) == (0, "")
    assert f"pipeloom {name}" in out.decode().split("example:\n")[1]
    assert "--json" in out.decode()


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("kind", ["missing", "another kind", "a folder"])
def test_a_file_that_cannot_be_read_is_a_line_and_the_same_in_json(
    lines: Lines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    file = tmp_path / "other.json"
    if kind == "another kind":
        file.write_text('{"format": "pipeloom.nothing", "version": 1}')
    elif kind == "a folder":
        file.mkdir()
    words = with_file(lines[name], str(file))
    code, out, err = called(words, monkeypatch)
    assert (code, out, err.count("\n")) == (2, b"", 1), err
    assert err.startswith(f"pipeloom: {file}")
    code, out, again = called([*words, "--json"], monkeypatch)
    assert (code, again) == (2, err)
    assert [f"pipeloom: {each}\n" for each in json.loads(out)["error"]] == [err]


@pytest.mark.parametrize("name", COMMANDS)
def test_standard_input_is_a_file(lines: Lines, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    first = next(word for word in lines[name] if "sound-" in word)
    whole = called(lines[name], monkeypatch)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(Path(first).read_bytes())))
    piped = called(with_file(lines[name], "-"), monkeypatch)
    named = untimed(whole[1]).replace(first, "standard input")
    answered = untimed(piped[1]).replace("'standard input'", "standard input")
    answered = answered.replace("predict - ", "predict standard input ")
    assert (piped[0], answered) == (whole[0], named)


def untimed(answer: bytes) -> str:
    """``answer`` without how long a search took."""
    return re.sub(r'"(solve_)?seconds": ?[^,}]*|[\d.]+ s\b', "", answer.decode())


@pytest.mark.parametrize("name", WRITERS)
def test_output_that_cannot_be_written(
    lines: Lines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    nowhere = tmp_path / "absent" / "x.json"
    no_folder = f"there is no folder {nowhere.parent}"
    for place, why in (tmp_path, "Is a directory"), (nowhere, no_folder):
        code, out, err = called([*lines[name], "-o", str(place)], monkeypatch)
        assert (code, out) == (2, b"")
        assert err.splitlines()[-1] == f"pipeloom: {place}: cannot be written: {why}"


@NOTHING_FULL
@pytest.mark.usefixtures("trained")
@pytest.mark.parametrize("as_json", [False, True], ids=["words", "json"])
@pytest.mark.parametrize("name", [*COMMANDS, *OTHERS])
def test_output_that_is_not_taken_is_one_line_or_silence(
    lines: Lines, monkeypatch: pytest.MonkeyPatch, name: str, as_json: bool
) -> None:
    words = [*lines[name], *(["--json"] if as_json and name in COMMANDS else [])]
    # a raw file is written at once, another when it is flushed
    sinks = FULL.open("wb", buffering=0 if as_json else -1), unread()
    for sink, lines_of_it in zip(sinks, (1, 0), strict=True):
        code, _, err = called(words, monkeypatch, sink)
        assert (code, err.count(UNWRITTEN)) == (1, lines_of_it)
        assert not re.search("Traceback|internal error|Broken pipe", err)


@NOTHING_FULL
@pytest.mark.parametrize("name", COMMANDS)
def test_help_that_is_not_taken(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert called([name, "--help"], monkeypatch, FULL.open("wb")) == (1, b"", UNWRITTEN)
