"""What went is answered with what takes its place: commands, options, Python names and keys."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import pipeloom
from pipeloom.ir.removed import REMOVED
from tests.support.command_line import Command

HERE = "do this instead"


@pytest.fixture(autouse=True)
def _removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row of each kind, whatever the table holds."""
    for name in ("pipeloom unpack", "--backwards", "pipeloom.unpack", "key colour"):
        monkeypatch.setitem(REMOVED, name, HERE)


def test_a_removed_command(pipeloom: Command) -> None:
    assert pipeloom("unpack", "x.json").refusal == (
        f"pipeloom: COMMAND: unpack was removed in 0.2.0; {HERE}"
    )


def test_a_removed_option(pipeloom: Command) -> None:
    line = pipeloom("build", "gpipe", "x.json", "-m", "4", "--backwards").refusal
    assert line == f"pipeloom: --backwards: was removed in 0.2.0; {HERE}"
    assert pipeloom("build", "--backwards=3").refusal == line  # whatever else is missing


def test_a_removed_python_name() -> None:
    with pytest.raises(AttributeError, match=f"unpack.*was removed in 0.2.0; {HERE}"):
        pipeloom.unpack  # noqa: B018


def test_a_removed_keyword() -> None:
    with pytest.raises(TypeError, match="^optimize: backwards was removed in 0.2.0; " + HERE):
        pipeloom.optimize({}, 4, backwards=True)  # type: ignore[call-arg]


def test_a_removed_key_of_a_file(pipeloom: Command, tmp_path: Path) -> None:
    stage = {"t_f": 1.0, "t_b": 1.0, "t_w": 1.0, "m_b": 1.0, "m_w": 0.5, "colour": "red"}
    profile = {"format": "pipeloom.profile", "version": 1, "ranks": 2, "stages": [stage, stage]}
    file = tmp_path / "profile.json"
    file.write_text(json.dumps(profile), encoding="utf-8")
    line = pipeloom("optimize", str(file), "-m", "4", "-o", str(tmp_path / "s.json")).refusal
    assert line == f"pipeloom: {file}: stages[0]: colour: was removed in 0.2.0; {HERE}"


def test_nothing_in_the_table_is_still_there() -> None:
    assert not [name for name in pipeloom.__all__ if f"pipeloom.{name}" in REMOVED]
