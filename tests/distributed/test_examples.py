"""The examples as a user runs them: model sources, and scripts for torchrun, which train as one
process does; the demo with a tiny model."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

from examples import demo, replanning, train_text, train_torchtitan
from examples.demo_report import largest_difference
from examples.mlp import MLP
from examples.train_torchrun import STEPS
from pipeloom import compile_schedule, dump_program, export, write_json
from pipeloom.ir import load_profile, load_schedule, verify_schedule
from pipeloom.runtime import RunSettings, launch_ranks, run_program
from tests.support.models import mean_losses
from tests.support.schedules import schedule

ROOT = Path(__file__).parents[2]
RANKS, MICROBATCHES = 2, 4


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = str(tmp_path / "program.json")
    write_json(dump_program(compile_schedule(schedule("zb-h1", RANKS, MICROBATCHES))), path)
    return path


@pytest.fixture
def expected() -> list[float]:
    return mean_losses(MLP(), RANKS, MICROBATCHES, STEPS)


def test_the_mlp_trains_as_in_one_process(program: str, expected: list[float]) -> None:
    result = run_program(program, "examples.mlp:MLP", RunSettings(steps=STEPS))
    assert result is not None
    assert result.losses == pytest.approx(expected, rel=1e-5)
    assert expected[-1] < expected[0]


def torchrun(processes: int, module: str, *words: str) -> str:
    """What these processes print."""
    number = f"--nproc-per-node={processes}"
    done = called("torch.distributed.run", "--standalone", number, "-m", module, *words)
    return done.stdout + done.stderr


def called(module: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *words]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, env=environment, cwd=ROOT, check=True, timeout=280, capture_output=True, text=True
    )


def test_torchrun_trains_as_in_one_process(program: str, expected: list[float]) -> None:
    """``pipeloom run`` under it: test_replicas.py."""
    output = torchrun(RANKS, "examples.train_torchrun", program)
    found = re.findall(r"step \d: loss ([\d.]+)", output)
    assert [float(loss) for loss in found] == pytest.approx(expected, abs=1e-4)


class Uneven(MLP):
    def stages(self, count: int) -> list[Callable[[], nn.Module]]:
        return [partial(replanning.stage, s, count) for s in range(count)]


def test_a_job_that_plans_again_trains_as_in_one_process() -> None:
    output = torchrun(RANKS, "examples.replanning")
    assert len(re.findall(r"planned [\d.]+ ms", output)) == 1
    found = re.findall(r"step \d: loss ([\d.]+)", output)
    expected = mean_losses(Uneven(), RANKS, replanning.MICROBATCHES, replanning.STEPS)
    assert [float(loss) for loss in found] == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow
def test_a_mesh_trains_as_in_one_process(tmp_path: Path) -> None:
    path = str(tmp_path / "program.json")
    plan = schedule("zb-h1", RANKS, MICROBATCHES)
    write_json(dump_program(compile_schedule(plan, data_parallel=True)), path)
    output = torchrun(8, "examples.train_mesh", path)
    rows = re.findall(r"step (\d): replica \d: loss ([\d.]+)", output)
    found = [sum(float(x) for i, x in rows if int(i) == step) / 2 for step in range(STEPS)]
    assert found == pytest.approx(mean_losses(MLP(), RANKS, 2 * MICROBATCHES, STEPS), abs=1e-4)


def test_a_schedule_as_csv_and_names_of_modules_train_as_in_one_process(tmp_path: Path) -> None:
    csv, parts = tmp_path / "schedule.csv", tmp_path / "parts.json"
    plan = schedule("interleaved-1f1b:2", RANKS, MICROBATCHES)
    csv.write_text(export(plan, "torch-csv").text)
    names = ["tok_embeddings", "layers.0", "layers.1", "layers.2", "layers.3", "norm", "lm_head"]
    parts.write_text(json.dumps([names[:2], names[2:4], names[4:5], names[5:]]))
    ran = launch_ranks(train_torchtitan.train, RANKS, (str(csv), str(parts)), timeout=120)
    model = train_torchtitan.whole()
    expected = one_process(model, train_torchtitan.batch, train_torchtitan.loss)
    assert ran[0] == []
    assert ran[1] == pytest.approx(expected, rel=1e-4)


def test_a_hugging_face_model_learns_text_and_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A second call goes on from the first one's checkpoint, which torch loads into the model."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path / "text"
    ran = []
    for steps in ("2", "4"):
        train_text.main(["--steps", steps, "--every", "1", "--out", str(folder)])
        ran.append(capfd.readouterr())
    assert [re.findall(r"step (\d): loss", each.err) for each in ran] == [["0", "1"], ["2", "3"]]
    found = re.findall(r"after step (\d): ([\d.]+) nats", "".join(each.out for each in ran))
    assert [step for step, _ in found] == ["0", "1", "2", "3"]
    assert float(found[0][1]) > float(found[-1][1])
    config = transformers.AutoConfig.from_pretrained(train_text.Text().path)
    model = transformers.AutoModelForCausalLM.from_config(config)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    dcp.load({"model": model.state_dict()}, checkpoint_id=folder / "step-000004", no_dist=True)
    assert all(not torch.equal(before[name], value) for name, value in model.state_dict().items())


def one_process(model: nn.Module, batch: Any, loss: Any) -> list[float]:
    """Whole batches of the whole model: the mean over microbatches of one size."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    history = []
    for step in range(STEPS):
        inputs, target = batch(step, MICROBATCHES)
        optimizer.zero_grad()
        value = loss(model(inputs), target)
        value.backward()
        optimizer.step()
        history.append(value.item())
    return history


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("demo")
    words = ["--small", "--steps", "2", "--time-limit", "1", "--out", str(folder)]
    return folder, called("examples.demo", *words).stdout


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
