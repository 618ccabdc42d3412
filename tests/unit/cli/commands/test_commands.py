"""What all commands have in common: standard input and output, pipes, links, bugs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command_line import ENVIRONMENT, Command


def pipeline(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """A shell pipeline whose ``pipeloom`` is this checkout's."""
    function = f'pipeloom() {{ "{sys.executable}" -m pipeloom "$@"; }}\n'
    return subprocess.run(
        ["bash", "-c", function + script],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_standard_input_and_output_join_commands(profile: Path, tmp_path: Path) -> None:
    done = pipeline(
        "set -o pipefail; cat profile.json | pipeloom build zb-h1 - -m 3 -o - 2>words "
        "| tee schedule.json | pipeloom compile - -o - 2>/dev/null | pipeloom show - --columns 60",
        tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("small, 2 ranks, 3 microbatches: zb-h1, 10.00 % bubble\nrank 0")
    assert "bubble rate" in (tmp_path / "words").read_text()


def test_a_bug_is_one_line_and_no_traceback(
    pipeloom: Command, schedule: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("a bug\nof ours")

    monkeypatch.setattr("pipeloom.ir.formats.schedule_json.parse_schedule", broken)
    monkeypatch.setattr("pipeloom.ir.formats.parse_schedule", broken)
    done = pipeloom("show", schedule)
    assert done.code == 70
    assert done.err.startswith("pipeloom: internal error: KeyError: ")
    assert done.err.count("\n") == 1
    monkeypatch.setenv("PIPELOOM_TRACEBACK", "1")
    with pytest.raises(KeyError):
        pipeloom("show", schedule)


def test_output_through_a_link_keeps_the_link(
    pipeloom: Command, profile: Path, tmp_path: Path
) -> None:
    target, link = tmp_path / "real.json", tmp_path / "link.json"
    target.write_text("old")
    target.chmod(0o600)
    link.symlink_to(target)
    assert pipeloom("build", "gpipe", profile, "-m", 2, "-o", link).code == 0
    assert link.is_symlink()
    assert json.loads(target.read_text())["format"] == "pipeloom.schedule"
    assert target.stat().st_mode & 0o777 == 0o600
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
