"""What a failure prints: its lines, their file, and the effect of closed streams."""

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

from pipeloom.__main__ import command
from tests.support.command_line import Command, profile_document
from tests.support.processes import ENVIRONMENT

FULL = Path("/dev/full")
CLOSED = "pipeloom: standard output: is closed; expected a file, a pipe or a terminal\n"


JOINED = (
    "cat profile.json | pipeloom build zb-h1 - -m 3 -o - 2>words | tee schedule.json "
    "| pipeloom compile - -o - 2>/dev/null | pipeloom show - --columns 60 > picture"
)


@pytest.mark.parametrize(
    ("script", "code", "err"),
    [
        ("pipeloom verify schedule.json >&-", 1, CLOSED),
        ("pipeloom verify schedule.json 2>&-", 0, ""),
        ("pipeloom verify - <&-", 2, "pipeloom: standard input: cannot be read: it is closed\n"),
        ("pipeloom verify schedule.json | true; exit ${PIPESTATUS[0]}", 1, ""),
        (f"set -o pipefail; {JOINED}", 0, ""),
    ],
)
@pytest.mark.usefixtures("schedule")
def test_streams_that_are_joined_closed_or_full(
    tmp_path: Path, script: str, code: int, err: str
) -> None:
    ours = f'pipeloom() {{ "{sys.executable}" -m pipeloom "$@"; }}\n{script}'
    options: dict[str, Any] = {"cwd": tmp_path, "env": ENVIRONMENT, "capture_output": True}
    done = subprocess.run(["bash", "-c", ours], text=True, check=False, **options)
    assert (done.returncode, done.stderr) == (code, err)
    if script.endswith("picture"):
        words = "small, 2 ranks, 3 microbatches: zb-h1, 10.00 % bubble\nrank 0"
        assert (tmp_path / "picture").read_text().startswith(words)
        assert "bubble rate" in (tmp_path / "words").read_text()


def test_of_many_faults_the_first_are_shown_and_json_has_all(
    pipeloom: Command, tmp_path: Path
) -> None:
    """So many faults that suggesting similar keys for each would take minutes."""
    path = tmp_path / "profile.json"
    keys = "".join(f'"k{i}": 1, "k{i}": 2, ' for i in range(50_000))
    path.write_text("{" + keys + json.dumps(profile_document())[1:])
    done = pipeloom("build", "gpipe", path, "-m", 2, "--json")
    *shown, last = done.err.splitlines()
    assert len(done.json["error"]) == 50_000
    assert shown == [f"pipeloom: {line}" for line in done.json["error"][:20]]
    assert last == "pipeloom: and 49980 more (--json lists all)"


@pytest.mark.parametrize(
    ("words", "key"),
    [(["--bogus"], "--bogus"), (["--seed", "x"], "--seed"), (["--solver", "z"], "--solver")],
)
def test_json_has_the_option_of_wrong_usage(
    pipeloom: Command, profile: Path, words: list[str], key: str
) -> None:
    done = pipeloom("optimize", profile, *words, "--json")
    assert (done.code, done.json["faults"]) == (2, [{"key": key}])
    assert done.err.startswith(f"pipeloom: {key}: ")


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize(
    ("raised", "code", "line"),
    [
        (OSError(24, "Too many open files", "/x"), 1, "/x: Too many open files\n"),
        (MemoryError(), 1, "not enough memory\n"),
        (KeyboardInterrupt(), 130, "interrupted; nothing was written\n"),
        (SystemExit("no data here"), 70, "internal error: SystemExit: no data here "),
        (CancelledError("by a future"), 70, "internal error: CancelledError: by a future "),
        (KeyError("a bug\nof ours"), 70, "internal error: KeyError: 'a bug\\nof ours' "),
    ],
)
def test_whatever_ends_a_process_is_a_line(
    schedule: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfdbinary: pytest.CaptureFixture[bytes],
    raised: BaseException,
    code: int,
    line: str,
) -> None:
    """Exceptions from a model's code, Rust or a future may not derive from Exception."""

    def fails(*_: Any, **__: Any) -> None:
        raise raised

    monkeypatch.setattr("pipeloom.planner.verify.verify", fails)
    monkeypatch.setattr("sys.argv", ["pipeloom", "verify", str(schedule)])
    with pytest.raises(SystemExit) as ended:
        command()
    err = capfdbinary.readouterr().err.decode()
    assert (ended.value.code, err.count("\n")) == (code, 1)
    assert err.startswith(f"pipeloom: {line}")
    monkeypatch.setenv("PIPELOOM_TRACEBACK", "1")
    with pytest.raises(SystemExit if code == 130 else type(raised)):
        command()


def test_links_are_followed_and_kept(
    pipeloom: Command, profile: Path, schedule: Path, tmp_path: Path
) -> None:
    one, other = tmp_path / "a.json", tmp_path / "b.json"
    one.symlink_to(other)
    other.symlink_to(one)
    circle = "Too many levels of symbolic links"
    assert pipeloom("verify", one).refusal == f"pipeloom: {one}: cannot be read: {circle}"
    line = pipeloom("compile", schedule, "-o", one).refusal
    assert line == f"pipeloom: {one}: cannot be written: {circle}"
    other.unlink()
    other.write_text("old")
    other.chmod(0o600)
    assert pipeloom("build", "gpipe", profile, "-m", 2, "-o", one).code == 0
    assert one.is_symlink()
    assert json.loads(other.read_text())["format"] == "pipeloom.schedule"
    assert other.stat().st_mode & 0o777 == 0o600
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@pytest.mark.skipif(not FULL.exists(), reason="no device that is always full")
def test_a_file_on_a_full_disk_is_kept(
    pipeloom: Command, profile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, new = tmp_path / "kept.json", tmp_path / "new"
    for each in (path, new):
        each.write_text("precious")
    monkeypatch.setattr(tempfile, "mkstemp", lambda **_: (os.open(FULL, os.O_WRONLY), str(new)))
    line = pipeloom("build", "gpipe", profile, "-m", 2, "-o", path).refusal
    assert line == f"pipeloom: {path}: cannot be written: No space left on device"
    assert (path.read_text(), new.exists()) == ("precious", False)
