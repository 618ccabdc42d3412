"""run saves, goes on, evaluates and tells callbacks; what is wrong with these is one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeloom import StepRecord
from tests.support.command_line import Command

ROOT = Path(__file__).parents[4]
MODEL = "examples.gpt:small"
told: list[StepRecord] = []


@pytest.fixture
def program(
    pipeloom: Command, schedule: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    path = tmp_path / "program.json"
    assert pipeloom("compile", schedule, "-o", path).code == 0
    return path


def test_a_run_goes_on_where_it_was_saved(pipeloom: Command, program: Path, tmp_path: Path) -> None:
    told.clear()
    words = ["run", program, "--model", MODEL, "--local", "--dtype", "float64"]
    whole = pipeloom(*words, "--steps", 4, "--json", "-q").json
    save = ["--save", tmp_path / "saved", "--every", 1]
    name = "tests.unit.cli.commands.test_run_training:told.append"
    first = pipeloom(*words, "--steps", 2, *save, "--callback", name, "--json")
    assert (first.code, first.err.count("\n")) == (0, 2)
    assert [record.loss for record in told] == first.json["losses"] == whole["losses"][:2]
    rest = pipeloom(*words, "--steps", 4, *save, "--resume", tmp_path / "saved", "--json", "-q")
    assert (rest.json["first_step"], rest.json["losses"]) == (2, whole["losses"][2:])


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--resume", "absent"], "absent: expected a folder with checkpoints"),
        (["--resume", "docs"], "docs: expected a complete checkpoint, step-N with .metadata in it"),
        (["--every", 2], "--every: expected a folder to save in, too, got 2 alone"),
        (["--every", 0], "--every"),
        (["--save", "README.md"], "README.md: cannot be written"),
        (["--eval-every", 1], "--eval-every: expected a model source with eval_batch(step, micro"),
        (["--callback", "examples.gpt"], "examples.gpt: expected MODULE:ATTRIBUTE"),
        (["--callback", "examples.gpt:absent"], "examples.gpt has no attribute absent"),
    ],
)
def test_wrong_options_are_one_line(
    pipeloom: Command, program: Path, options: list[object], line: str
) -> None:
    done = pipeloom("run", program, "--model", MODEL, "--local", *options)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert line in done.err
