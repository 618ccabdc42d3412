"""Standard output on a full disk, or that nobody reads, under every command that there is."""

from __future__ import annotations

import io
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import IO

import pytest

from pipeloom.cli.main import COMMANDS, main
from pipeloom.ir.formats import load_program
from tests.fuzz.cases import sound_lines
from tests.support.command_line import Command

FULL = Path("/dev/full")
UNWRITTEN = "pipeloom: standard output: cannot be written: No space left on device\n"
OTHERS = {
    "a list": ["build", "--list"],
    "a document": ["build", "zb-h1", "{profile}", "-m", "2", "-o", "-"],
    "a picture": ["show", "{schedule}", "--as", "svg"],
    "the overview": ["--help"],
    "the version": ["--version"],
}
Lines = dict[str, list[str]]


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Lines:
    """Words of each command, and of the others."""
    folder = tmp_path_factory.mktemp("sound")
    found = sound_lines(folder)
    assert set(found) == set(COMMANDS), "tests/fuzz/documents.py has a line of each command"
    files = {kind: str(folder / f"sound-{kind}") for kind in ("profile", "schedule")}
    others = {name: [word.format(**files) for word in words] for name, words in OTHERS.items()}
    return found | others


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch, lines: Lines) -> None:
    """What ``run`` answers, without training."""
    from pipeloom import training
    from pipeloom.runtime.train.train import RunResult

    program, took = load_program(lines["run"][1]), ((1.0, 0.5), (0.1, 0.1))
    plan = program.schedule
    result = RunResult(*took, (1, 1), (None, None), measured=plan, planned=plan)
    monkeypatch.setattr(training, "run", lambda *_, **__: result)


def told(words: list[str], sink: IO[bytes], monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    """The exit code and standard error of a command whose output goes to ``sink``."""
    err = io.StringIO()
    out = io.TextIOWrapper(sink, write_through=isinstance(sink, io.RawIOBase))
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    return main(words), err.getvalue()


def unread() -> IO[bytes]:
    """A pipe whose reader has left."""
    reader, writer = os.pipe()
    os.close(reader)
    return os.fdopen(writer, "wb")


@pytest.mark.usefixtures("trained")
@pytest.mark.skipif(not FULL.exists(), reason="no device that is always full")
@pytest.mark.parametrize("as_json", [False, True], ids=["words", "json"])
@pytest.mark.parametrize("name", [*COMMANDS, *OTHERS])
def test_output_that_is_not_taken_is_one_line_or_silence(
    lines: Lines, monkeypatch: pytest.MonkeyPatch, name: str, as_json: bool
) -> None:
    words = [*lines[name], *(["--json"] if as_json and name in COMMANDS else [])]
    # a raw file is written at once, another when it is flushed
    sinks = FULL.open("wb", buffering=0 if as_json else -1), unread()
    for sink, lines_of_it in zip(sinks, (1, 0), strict=True):
        code, err = told(words, sink, monkeypatch)
        assert (code, err.count(UNWRITTEN)) == (1, lines_of_it)
        assert not re.search("Traceback|internal error|Broken pipe", err)


@pytest.mark.skipif(not FULL.exists(), reason="no device that is always full")
@pytest.mark.parametrize("at_once", [False, True])
def test_a_failure_has_its_own_lines_and_exit_code(
    lines: Lines, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    words = ["verify", lines["optimize"][1], "--json"]
    code, err = told(words, FULL.open("wb", buffering=0 if at_once else -1), monkeypatch)
    assert (code, err.count(UNWRITTEN)) == (2, 0 if at_once else 1)


@pytest.mark.skipif(not FULL.exists(), reason="no device that is always full")
@pytest.mark.parametrize("name", COMMANDS)
def test_help_that_is_not_taken(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert told([name, "--help"], FULL.open("wb"), monkeypatch) == (1, UNWRITTEN)


@pytest.mark.skipif(not FULL.exists(), reason="no device that is always full")
def test_a_file_on_a_full_disk_is_kept(
    pipeloom: Command, profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, new = tmp_path / "kept.json", tmp_path / "new"
    for each in (path, new):
        each.write_text("precious")
    monkeypatch.setattr(tempfile, "mkstemp", lambda **_: (os.open(FULL, os.O_WRONLY), str(new)))
    done = pipeloom("build", "gpipe", profile, "-m", 2, "-o", path)
    line = f"pipeloom: {path}: cannot be written: No space left on device\n"
    assert (done.code, done.out, done.err) == (2, "", line)
    assert (path.read_text(), new.exists()) == ("precious", False)
