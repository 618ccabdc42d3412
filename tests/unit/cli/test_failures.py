"""One place decides what a failure prints: its lines, their file, and what streams do to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from asyncio import CancelledError
from pathlib import Path
from typing import Any

import pytest

from pipeloom.cli.failures import MOST_CHARACTERS
from pipeloom.cli.main import command
from tests.support.command_line import ENVIRONMENT, Command, profile_document, written

FULL = Path("/dev/full")


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


def test_titles_are_shown_without_control_characters(pipeloom: Command, schedule: Path) -> None:
    for kind in ("text", "svg", "html"):
        done = pipeloom("show", schedule, "--title", "a\x1b[31m\nb", "--as", kind)
        assert "\\x1b[31m\\nb" in done.out
        assert "\x1b" not in done.out


def test_links_in_a_circle(pipeloom: Command, schedule: Path, tmp_path: Path) -> None:
    one, other = tmp_path / "a.json", tmp_path / "b.json"
    one.symlink_to(other)
    other.symlink_to(one)
    circle = "Too many levels of symbolic links"
    done = pipeloom("verify", one)
    assert (done.code, done.err) == (2, f"pipeloom: {one}: cannot be read: {circle}\n")
    done = pipeloom("compile", schedule, "-o", one)
    assert (done.code, done.err) == (2, f"pipeloom: {one}: cannot be written: {circle}\n")


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


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_file_that_is_read_only_is_kept(pipeloom: Command, profile: Path, tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    path.write_text("precious")
    path.chmod(0o444)
    done = pipeloom("build", "gpipe", profile, "-m", 2, "-o", path)
    assert done.err == f"pipeloom: {path}: cannot be written: Permission denied\n"
    assert path.read_text() == "precious"


def test_of_many_faults_the_first_are_shown_and_json_has_all(
    pipeloom: Command, tmp_path: Path
) -> None:
    """As many as take minutes where reading looks at all former keys for each."""
    path = tmp_path / "profile.json"
    keys = "".join(f'"k{i}": 1, "k{i}": 2, ' for i in range(50_000))
    path.write_text("{" + keys + json.dumps(profile_document())[1:])
    done = pipeloom("build", "gpipe", path, "-m", 2, "--json")
    *shown, last = done.err.splitlines()
    assert len(done.json["error"]) == 50_000
    assert shown == [f"pipeloom: {line}" for line in done.json["error"][:20]]
    assert last == "pipeloom: and 49980 more (--json lists all)"
