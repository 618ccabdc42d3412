"""The examples as a user runs them: model sources, and scripts for torchrun, which train as one
process does; the demo with a tiny model."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from html import escape
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

from examples import demo, replanning, train_text, train_torchrun, train_torchtitan
from examples.demo_report import largest_difference
from examples.mlp import MLP
from examples.train_torchrun import STEPS
from pipeloom import compile_schedule, dump_program, export, write_json
from pipeloom.ir import load_profile, load_schedule, verify_schedule
from tests.support.launched import in_one_launch, the_only_rank
from tests.support.models import mean_losses
from tests.support.processes import torchrun
from tests.support.schedules import schedule

RANKS, MICROBATCHES = 2, 4


class Uneven(MLP):
    def stages(self, count: int) -> list[Callable[[], nn.Module]]:
        return [partial(replanning.stage, s, count) for s in range(count)]


def program(path: Path, *, data_parallel: bool = False) -> str:
    plan = schedule("zb-h1", RANKS, MICROBATCHES)
    write_json(dump_program(compile_schedule(plan, data_parallel=data_parallel)), str(path))
    return str(path)


def printed(main: Callable[..., object], *given: str) -> str:
    """What a script for torchrun prints on this rank, whose process group is already there."""
    output = io.StringIO()
    groups = {"init_process_group": print, "destroy_process_group": print}
    with patch.multiple(dist, **groups), redirect_stdout(output):
        main(*given)
    return output.getvalue()


def test_scripts_train_as_in_one_process(tmp_path: Path) -> None:
    """With a program, by one that is planned again, and by torchtitan's conventions."""
    csv, parts = tmp_path / "schedule.csv", tmp_path / "parts.json"
    plan = schedule("interleaved-1f1b:2", RANKS, MICROBATCHES)
    csv.write_text(export(plan, "torch-csv").text)
    names = ["tok_embeddings", "layers.0", "layers.1", "layers.2", "layers.3", "norm", "lm_head"]
    parts.write_text(json.dumps([names[:2], names[2:4], names[4:5], names[5:]]))
    own, again, titan = in_one_launch(
        RANKS,
        [
            (printed, (train_torchrun.main, program(tmp_path / "program.json"))),
            (printed, (replanning.main,)),
            (train_torchtitan.train, (str(csv), str(parts))),
        ],
    )
    expected = mean_losses(MLP(), RANKS, MICROBATCHES, STEPS)
    assert losses("".join(own)) == pytest.approx(expected, abs=1e-4)
    assert len(re.findall(r"planned [\d.]+ ms", "".join(again))) == 1
    expected = mean_losses(Uneven(), RANKS, replanning.MICROBATCHES, replanning.STEPS)
    assert losses("".join(again)) == pytest.approx(expected, abs=1e-4)
    model = train_torchtitan.whole()
    expected = one_process(model, train_torchtitan.batch, train_torchtitan.loss)
    assert titan == [[], pytest.approx(expected, rel=1e-4)]


def losses(output: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"step \d: loss ([\d.]+)", output)]


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


@pytest.mark.slow
def test_under_torchrun_a_mesh_trains_as_in_one_process(tmp_path: Path) -> None:
    """``pipeloom run`` under it: test_replicas.py."""
    path = program(tmp_path / "replicas.json", data_parallel=True)
    output = torchrun(8, "examples.train_mesh", path).stdout
    rows = re.findall(r"step (\d): replica \d: loss ([\d.]+)", output)
    found = [sum(float(x) for i, x in rows if int(i) == step) / 2 for step in range(STEPS)]
    assert found == pytest.approx(mean_losses(MLP(), RANKS, 2 * MICROBATCHES, STEPS), abs=1e-4)


def test_a_hugging_face_model_learns_text_and_goes_on(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """On two processes, then in this one, from the checkpoint, which torch loads into the model."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path / "text"
    train_text.main(["--steps", "2", "--every", "1", "--out", str(folder)])
    first = capfd.readouterr()
    with the_only_rank(), patch.object(train_text, "STAGES", 1):
        train_text.main(["--steps", "3", "--every", "1", "--out", str(folder)])
    ran = [first, capfd.readouterr()]
    assert [re.findall(r"step (\d): loss", each.err) for each in ran] == [["0", "1"], ["2"]]
    found = re.findall(r"after step (\d): ([\d.]+) nats", "".join(each.out for each in ran))
    assert [step for step, _ in found] == ["0", "1", "2"]
    assert float(found[0][1]) > float(found[-1][1])
    config = transformers.AutoConfig.from_pretrained(train_text.Text().path)
    model = transformers.AutoModelForCausalLM.from_config(config)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    dcp.load({"model": model.state_dict()}, checkpoint_id=folder / "step-000002", no_dist=True)
    assert all(not torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_the_demo_compares_what_it_plans_and_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every step is a call that is shown; at the end are the table and the picture."""
    words = ["--small", "--steps", "2", "--time-limit", "0.2", "--out", str(tmp_path)]
    assert demo.main(words) == 0
    output = capsys.readouterr().out
    lines = output.splitlines()
    assert lines[-1] == f"Planned and measured timelines: {tmp_path / 'timelines.svg'}"
    table = [line for line in lines if " to " in line and " %" in line]
    assert [row.split("  ")[0] for row in table] == list(demo.PLANS)
    assert "each schedule's curve is that of one process" in output
    calls = [line.partition("(")[0] for line in lines if line.startswith(">>> ")]
    names = [call.removeprefix(">>> pipeloom.") for call in calls]
    assert list(dict.fromkeys(names)) == ["measure", "build", "optimize", "compile", "run", "show"]
    begun = [line for line in lines if line.startswith("[")]
    assert [line.partition(",")[0] for line in begun] == [f"[{n}/8" for n in range(1, 9)]
    check_files(tmp_path)


def check_files(folder: Path) -> None:
    """Measured memory is as planned, up to messages that come early; the best schedule needs no
    more than 1F1B, or than twice that. Planned and measured timelines are in the picture."""
    peaks = list[float]()
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
    picture = (folder / "timelines.svg").read_text()
    suffix = "paced" if demo._few_cores() else "measured"
    assert all(escape(f"{title}, {suffix}: ") in picture for title in demo.PLANS)


def test_a_curve_that_differs_is_noticed() -> None:
    for curve, same in (([3.0, 2.0], True), ([3.0, 2.1], False), ([float("nan"), 2.0], False)):
        difference = largest_difference([3.0, 2.0], [[3.0, 2.0], curve, [3.0, 2.0]])
        assert (difference <= demo.TOLERANCE) == same


def test_a_failing_command_ends_the_demo(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "profile.json").mkdir()
    assert demo.main(["--small", "--out", str(tmp_path)]) == 2
    assert "profile.json: cannot be written" in capsys.readouterr().err
