"""The small examples train as one process does: the model source, and the script for torchrun."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from examples.mlp import MLP
from examples.train_torchrun import STEPS
from pipeloom import compile_schedule, dump_program, write_json
from pipeloom.runtime.train import RunSettings, run_program
from tests.distributed.gradient_cases import schedule
from tests.models import reference

ROOT = Path(__file__).parents[2]
RANKS, MICROBATCHES = 2, 4


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = str(tmp_path / "program.json")
    write_json(dump_program(compile_schedule(schedule("zb-h1", RANKS, MICROBATCHES))), path)
    return path


@pytest.fixture
def expected() -> list[float]:
    history, _ = reference(MLP(), RANKS, MICROBATCHES, steps=STEPS, train=True)
    return [sum(losses) / len(losses) for losses in history]


def test_the_mlp_trains_as_in_one_process(program: str, expected: list[float]) -> None:
    result = run_program(program, "examples.mlp:MLP", RunSettings(steps=STEPS))
    assert result is not None
    assert result.losses == pytest.approx(expected, rel=1e-5)
    assert expected[-1] < expected[0]


@pytest.mark.parametrize(
    "words",
    [
        ["-m", "examples.train_torchrun", "{program}"],
        ["-m", "pipeloom", "run", "{program}", "--model", "examples.mlp:MLP", "--steps", "5"],
    ],
)
def test_torchrun_trains_as_in_one_process(
    program: str, expected: list[float], words: list[str]
) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={RANKS}", *(word.format(program=program) for word in words)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, env=environment, cwd=ROOT, check=True, timeout=200, capture_output=True, text=True
    )
    found = re.findall(r"step \d: loss ([\d.]+)", done.stdout + done.stderr)
    assert [float(loss) for loss in found] == pytest.approx(expected, abs=1e-4)
