"""One place decides what a failure prints: its lines, their file, and what streams do to it."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from asyncio import CancelledError
from pathlib import Path
from typing import Any

import pytest

from pipeloom.cli.failures import MOST_CHARACTERS
from pipeloom.cli.main import command
from tests.support.command_line import ENVIRONMENT, Command, profile_document, written


@pytest.mark.parametrize(
    ("redirected", "code", "err"),
    [
        (">&-", 1, "pipeloom: standard output: is closed; expected a file, a pipe or a terminal\n"),
        ("2>/dev/full", 0, ""),
        ("2>&-", 0, ""),
        ("<&-", 2, "pipeloom: standard input: cannot be read: it is closed\n"),
        ("| true; exit ${PIPESTATUS[0]}", 1, ""),
    ],
)
def test_streams_that_are_closed_or_full(
    schedule: Path, redirected: str, code: int, err: str
) -> None:
    file = "-" if redirected == "<&-" else schedule
    script = f"'{sys.executable}' -m pipeloom verify '{file}' {redirected}"
    done = subprocess.run(
        ["bash", "-c", script], env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (code, err)


def test_control_characters_are_escaped_and_a_long_line_says_how_much_was_cut(
    pipeloom: Command, tmp_path: Path
) -> None:
    path = written(tmp_path / "p\x1b[31m\nred.json", profile_document(stages="x" * 9))
    shown = str(path).replace("\x1b", "\\x1b").replace("\n", "\\n")
    assert pipeloom("build", "gpipe", path, "-m", 2).err == (
        f'pipeloom: {shown}: stages: expected a list, got "xxxxxxxxx"\n'
    )
    line = pipeloom("build", "x" * 5000, path, "-m", 2).err
    assert line.endswith(" more characters)\n")
    assert len(line) < MOST_CHARACTERS + 60
    assert line.count("\n") == 1


@pytest.mark.parametrize(
    "changes", [{"name": "\x1b[31m"}, {"name": "a\nb"}, {"name": "\ud800"}, {"name": "a\u202eb"}]
)
def test_names_have_no_control_characters(
    pipeloom: Command, tmp_path: Path, changes: dict[str, Any]
) -> None:
    path = written(tmp_path / "p.json", profile_document(**changes))
    done = pipeloom("build", "gpipe", path, "-m", 2)
    assert (done.code, done.out) == (2, "")
    got = json.dumps(changes["name"])
    assert done.err == (
        f"pipeloom: {path}: name: expected no control characters in it, got {got}\n"
    )


def test_titles_are_shown_without_control_characters(pipeloom: Command, schedule: Path) -> None:
    for kind in ("text", "svg", "html"):
        done = pipeloom("show", schedule, "--title", "a\x1b[31m\nb", "--as", kind)
        assert "\\x1b[31m\\nb" in done.out
        assert "\x1b" not in done.out


@pytest.mark.parametrize(
    "words",
    [
        ["build", "chimera", "{}", "-m", "3"],
        ["optimize", "{}", "-m", "2", "--placement", "linear", "--min-layers", "9"],
        ["optimize", "{}", "-m", "2", "--placement", "linear"],
        ["compare", "{}", "-m", "2", "--passing", "weights", "--placement", "v"],
    ],
)
def test_every_fault_names_its_file_or_option(
    pipeloom: Command, tmp_path: Path, words: list[str]
) -> None:
    path = written(tmp_path / "p.json", profile_document(ranks=3))
    done = pipeloom(*(word.format(path) for word in words))
    assert done.code == 2
    for line in done.err.splitlines():
        assert str(path) in line or line.startswith("pipeloom: -")


def test_standard_input_has_one_name(
    pipeloom: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    document = json.dumps(profile_document(ranks=3)).encode()
    for words in (["build", "chimera", "-", "-m", "3"], ["build", "gpipe", "-", "-m", "3"]):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(document)))
        err = pipeloom(*words).err
        assert err.startswith("pipeloom: standard input: ")
        assert "-:" not in err


def test_links_in_a_circle(pipeloom: Command, schedule: Path, tmp_path: Path) -> None:
    one, other = tmp_path / "a.json", tmp_path / "b.json"
    one.symlink_to(other)
    other.symlink_to(one)
    circle = "Too many levels of symbolic links"
    done = pipeloom("verify", one)
    assert (done.code, done.err) == (2, f"pipeloom: {one}: cannot be read: {circle}\n")
    done = pipeloom("compile", schedule, "-o", one)
    assert (done.code, done.err) == (2, f"pipeloom: {one}: cannot be written: {circle}\n")


@pytest.mark.parametrize("word", ["--placement=--", "--seed=--", "-m--", "--memory-limit=--"])
def test_two_dashes_are_no_value(pipeloom: Command, profile: Path, word: str) -> None:
    done = pipeloom("optimize", profile, "-m", 2, word)
    option = word[:2] if word.startswith("-m") else word[:-3]
    assert (done.code, done.err) == (2, f"pipeloom: {option}: expected a value, got '--'\n")


def test_what_the_machine_lacks_is_no_bug_of_ours(
    pipeloom: Command, schedule: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacking(error: Exception) -> str:
        def fails(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr("pipeloom.planner.verify.verify", fails)
        done = pipeloom("verify", schedule)
        assert done.code == 1
        return done.err

    assert (
        lacking(OSError(24, "Too many open files", "/x")) == "pipeloom: /x: Too many open files\n"
    )
    assert lacking(MemoryError()) == "pipeloom: not enough memory\n"


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize(
    "raised", [SystemExit("no data here"), SystemExit(0), CancelledError("by the scheduler")]
)
def test_what_ends_a_process_is_a_line(
    schedule: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
    raised: BaseException,
) -> None:
    """What a model's code, Rust's or a future's raises is no Exception."""

    def fails(*_: Any, **__: Any) -> None:
        raise raised

    monkeypatch.setattr("pipeloom.planner.verify.verify", fails)
    monkeypatch.setattr("sys.argv", ["pipeloom", "verify", str(schedule)])
    with pytest.raises(SystemExit) as ended:
        command()
    assert ended.value.code == 70
    words = f"internal error: {type(raised).__name__}: {raised} "
    assert capfdbinary.readouterr().err.decode().startswith(f"pipeloom: {words}")


IMPORTING = """
import sys
class Interrupting:
    def find_spec(self, name, *_):
        if name == "pipeloom.cli.main":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupting())
from pipeloom.__main__ import command
command()
"""


def test_an_interrupt_while_python_imports_is_one_line() -> None:
    found = subprocess.run(
        [sys.executable, "-c", IMPORTING], capture_output=True, text=True, check=False
    )
    assert found.returncode == 130
    assert found.stderr == "pipeloom: interrupted; nothing was written\n"
