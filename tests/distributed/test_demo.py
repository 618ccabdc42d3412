"""The demo as a user runs it, with a tiny model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from html import escape
from pathlib import Path

import pytest

from examples import demo
from examples.demo_report import largest_difference
from pipeloom.ir import load_profile, load_schedule, verify_schedule

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("demo")
    words = ["--small", "--steps", "2", "--time-limit", "1", "--out", str(folder)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-m", "examples.demo", *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout


def test_it_ends_with_the_table_and_the_picture(shown: tuple[Path, str]) -> None:
    folder, output = shown
    lines = output.splitlines()
    assert lines[-1] == f"Planned and measured timelines: {folder / 'timelines.svg'}"
    table = [line for line in lines if " to " in line and " %" in line]
    assert [row.split("  ")[0] for row in table] == list(demo.PLANS)
    assert "each schedule's curve is that of one process" in output


def test_schedules_are_valid_and_measured_memory_is_theirs(shown: tuple[Path, str]) -> None:
    """Up to messages that come early; the best one needs no more than 1F1B, or than twice that."""
    folder, peaks = shown[0], list[float]()
    message = load_profile(str(folder / "profile.json")).stages[0].activation_bytes
    for name in demo.PLANS.values():
        assert verify_schedule(json.loads((folder / f"{name}.json").read_text())) == []
        planned = load_schedule(str(folder / f"{name}.json")).timing.peak_memory
        measured = load_schedule(str(folder / f"{name}-measured.json")).timing.peak_memory
        buffers = json.loads((folder / f"{name}-program.json").read_text())["buffers"]
        for rank, (most, found) in enumerate(zip(planned, measured, strict=True)):
            assert 0.8 * most < found <= most + len(buffers[rank]) * message
        peaks.append(max(planned))
    peak, best, double = peaks
    assert best <= peak
    assert double <= 2 * peak


def test_the_picture_shows_planned_and_measured_side_by_side(shown: tuple[Path, str]) -> None:
    folder, _ = shown
    picture = (folder / "timelines.svg").read_text()
    suffix = "paced" if demo._few_cores() else "measured"
    assert all(escape(f"{title}, {suffix}: ") in picture for title in demo.PLANS)


def test_every_step_is_a_call_that_is_shown(shown: tuple[Path, str]) -> None:
    calls = [line.partition("(")[0] for line in shown[1].splitlines() if line.startswith(">>> ")]
    names = [call.removeprefix(">>> pipeloom.") for call in calls]
    assert list(dict.fromkeys(names)) == ["measure", "build", "optimize", "compile", "run", "show"]
    begun = [line for line in shown[1].splitlines() if line.startswith("[")]
    assert [line.partition(",")[0] for line in begun] == [f"[{n}/8" for n in range(1, 9)]


@pytest.mark.parametrize(
    ("curve", "same"), [([3.0, 2.0], True), ([3.0, 2.1], False), ([float("nan"), 2.0], False)]
)
def test_a_curve_that_differs_is_noticed(curve: list[float], same: bool) -> None:
    difference = largest_difference([3.0, 2.0], [[3.0, 2.0], curve, [3.0, 2.0]])
    assert (difference <= demo.TOLERANCE) == same


def test_a_failing_command_ends_the_demo(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "profile.json").mkdir()
    assert demo.main(["--small", "--out", str(tmp_path)]) == 2
    assert "profile.json: cannot be written" in capsys.readouterr().err
