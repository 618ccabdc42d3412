"""``optimize --placement auto``: the time that placements have, and what is said of them."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import pytest

from pipeloom.cli.arguments import Default
from pipeloom.cli.auto_placement import announce, time, unbounded_copies
from pipeloom.cli.main import main
from pipeloom.ir.profile import Profile, StageProfile
from pipeloom.solver.families import build_family
from tests.unit.cli.support import Command


def test_a_limit_that_is_typed_is_for_all_placements(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Namespace] = []

    def run(args: Namespace) -> int:
        asked.append(args)
        return 0

    monkeypatch.setattr("pipeloom.cli.optimize.run", run)
    for words in ([], ["--time-limit", "60"], ["--work-limit", "5"]):
        main(["optimize", "profile.json", "-m", "4", "--placement", "auto", *words])
    assert [time(args) for args in asked] == [{"each": 60.0}, {"seconds": 60.0}, {}]


def test_it_says_how_long_it_may_take(capsys: pytest.CaptureFixture[str]) -> None:
    args = Namespace(quiet=False, work_limit=None, time_limit=Default(60.0))
    announce(args, 6)
    assert "6 placements fit: 60 s for each that may win" in capsys.readouterr().err
    announce(args, 6)
    assert "420 s at most (--time-limit S: S seconds in all)" in capsys.readouterr().err
    for silent in (
        Namespace(quiet=True, work_limit=None, time_limit=Default(60.0)),
        Namespace(quiet=False, work_limit=None, time_limit=60.0),
    ):
        announce(silent, 6)
    announce(args, 0)
    assert capsys.readouterr().err == ""


def test_the_table_says_what_is_assumed_of_two_copies(
    pipeloom: Command, profile: Path, tmp_path: Path
) -> None:
    words = ["optimize", profile, "-m", 4, "--placement", "auto", "--work-limit", 0.1, "-q"]
    done = pipeloom(*words, "-o", tmp_path / "schedule.json")
    (row,) = [line for line in done.out.splitlines() if line.startswith("bidirectional")]
    assert "two copies of the weights (not counted: no device_memory)" in row
    choice = pipeloom(*words, "-o", tmp_path / "schedule.json", "--json").json["choice"]
    (entry,) = [one for one in choice["placements"] if one["placement"] == "bidirectional"]
    assert entry["assumed"].startswith("two copies")
    document = json.loads(profile.read_text())
    profile.write_text(json.dumps(document | {"device_memory": 100.0}))
    done = pipeloom(*words, "-o", tmp_path / "schedule.json")
    assert "counted as 0" in done.out


def test_one_copy_of_the_weights_is_to_be_had(
    pipeloom: Command, profile: Path, tmp_path: Path
) -> None:
    words = ["optimize", profile, "-m", 2, "--placement", "auto", "--work-limit", 0.1, "-q"]
    words += ["--copies", 1, "-o", tmp_path / "schedule.json", "--json"]
    choice = pipeloom(*words).json["choice"]
    assert "bidirectional" not in {one["placement"] for one in choice["placements"]}


def test_copies_that_nothing_bounds_are_told() -> None:
    stages = (StageProfile(1.0, 1.0, 1.0, 1.0, 0.5),) * 2
    for name, device, told in (
        ("chimera", None, True),
        ("chimera", (9.0,) * 2, False),
        ("1f1b", None, False),
    ):
        profile = Profile(stages, 2, 0.1, device_memory=device)
        assert unbounded_copies(build_family(name, profile, 2)) is told
