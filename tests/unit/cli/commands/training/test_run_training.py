"""run saves, goes on, evaluates and tells callbacks; what is wrong with these is one line."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from pipeloom import StepRecord
from tests.support.command_line import Command

MODEL = "examples.gpt:small"
told: list[StepRecord] = []


def stop(record: StepRecord) -> None:
    """As Ctrl-C or another process's SIGTERM would."""
    if record.step == 1:
        os.kill(os.getpid(), SIGNALS.pop())


SIGNALS: list[signal.Signals] = []


@pytest.fixture
def program(pipeloom: Command, schedule: Path, tmp_path: Path) -> Path:
    path = tmp_path / "program.json"
    assert pipeloom("compile", schedule, "-o", path).code == 0
    return path


def test_a_run_goes_on_where_it_was_saved(pipeloom: Command, program: Path, tmp_path: Path) -> None:
    told.clear()
    words = ["run", program, "--model", MODEL, "--dtype", "float64"]
    whole = pipeloom(*words, "--steps", 4, "--json", "-q").json
    save = ["--save", tmp_path / "saved", "--every", 1]
    name = "tests.unit.cli.commands.training.test_run_training:told.append"
    first = pipeloom(*words, "--steps", 2, *save, "--callback", name, "--json")
    assert (first.code, first.err.count("\n")) == (0, 2)
    assert [record.loss for record in told] == first.json["losses"] == whole["losses"][:2]
    rest = pipeloom(*words, "--steps", 4, *save, "--resume", tmp_path / "saved", "--json", "-q")
    assert (rest.json["first_step"], rest.json["losses"]) == (2, whole["losses"][2:])


def angry(*_: object) -> None:
    raise ValueError("\x1b[31mred\nand a second line")


@pytest.mark.parametrize("option", ["--model", "--callback"])
def test_what_users_raise_is_one_line_without_control_characters(
    pipeloom: Command, program: Path, option: str
) -> None:
    name = "tests.unit.cli.commands.training.test_run_training:angry"
    done = pipeloom("run", program, "--model", MODEL, option, name)
    assert done.code in (1, 2)
    assert done.err.splitlines()[-1].startswith("pipeloom: ")
    assert "\\x1b[31mred" in done.err
    assert "\x1b" not in done.err


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_what_was_saved_is_said_where_a_run_is_interrupted(
    pipeloom: Command, program: Path, tmp_path: Path, number: signal.Signals
) -> None:
    SIGNALS[:] = [number]
    before = signal.getsignal(signal.SIGTERM)
    name = "tests.unit.cli.commands.training.test_run_training:stop"
    words = ["--steps", 9, "--save", tmp_path / "own", "--every", 1, "--callback", name, "-q"]
    done = pipeloom("run", program, "--model", MODEL, *words)
    assert (done.code, done.out, done.err.count("\n")) == (130, "", 1)
    assert done.err.startswith("pipeloom: interrupted after step 2; ")
    assert done.err.endswith(" is the last checkpoint\n")
    assert str(tmp_path / "own" / "step-00000") in done.err
    assert signal.getsignal(signal.SIGTERM) is before
