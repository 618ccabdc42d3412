"""Runs that save, end or are killed, and go on as if nothing had happened; runs that diverge."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from pipeloom import (
    Profile,
    StageProfile,
    StepRecord,
    build_family,
    compile_schedule,
    run,
)
from pipeloom.ir import PipeloomError, Program
from pipeloom.runtime import LaunchError
from tests.support.launched import the_only_rank
from tests.support.small_gpt import MICROBATCHES, SmallGPT, program_of

SOURCE = "tests.support.small_gpt:SmallGPT"
STEPS = 4


def losses(where: Program, source: SmallGPT | str = SOURCE, **settings: object) -> list[float]:
    result = run(where, source, **{"steps": STEPS} | settings)
    assert result is not None
    return list(result.losses)


def latest(folder: Path) -> str:
    """The last complete checkpoint."""
    return max(path.parent.name for path in folder.glob("step-*/.metadata"))


@pytest.fixture(scope="module")
def whole() -> list[float]:
    """Losses of a run without a break."""
    with the_only_rank():
        return losses(program_of("1f1b", 1))


@dataclass(frozen=True)
class Disturbed(SmallGPT):
    """Rank 0 takes its time before it clears the folder of a save that was cut short, and is killed
    before the third step."""

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        def clear(path: Path, *, ignore_errors: bool) -> None:
            time.sleep(0.5)
            assert not path.exists(), f"{path} is another rank's"

        shutil.rmtree = clear  # type: ignore[assignment]
        return super().optimizer(parameters)

    def batch(self, step: int, microbatches: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        if step == 2 and os.environ["RANK"] == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().batch(step, microbatches)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run saved after each step, of two, before it was killed."""
    folder = tmp_path_factory.mktemp("saved")
    with pytest.raises(LaunchError, match="rank 0 died by SIGKILL"):
        losses(program_of("1f1b", 2), Disturbed(), save=str(folder), every=1)
    assert sorted(path.name for path in folder.iterdir()) == ["step-000001", "step-000002"]
    return folder


@pytest.fixture
def own(saved: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(saved, tmp_path / "own"))


def test_a_killed_run_goes_on_from_its_last_whole_checkpoint(whole: list[float], own: Path) -> None:
    """By another program, into the same folder, from which the next one goes on."""
    assert latest(own) == "step-000002"
    cut_short = own / "step-000009"  # what an interrupted save of another system might leave
    partial = own / ".step-000003.partial"
    for folder in (cut_short, partial):
        folder.mkdir()
        (folder / "__0_0.distcp").write_bytes(b"half")
    told: list[StepRecord] = []
    result = run(
        program_of("zb-v", 2),
        SOURCE,
        steps=3,
        resume=str(own),
        save=str(own),
        callbacks=[told.append],
    )
    assert result is not None
    assert (list(result.losses), result.first_step) == (whole[2:3], 2)
    answer = json.loads(json.dumps(result.to_dict()))
    assert (answer["first_step"], answer["steps"], answer["losses"]) == (2, 1, whole[2:3])
    assert "of the checkpoint" not in (result.note or "")
    tokens = MICROBATCHES * SmallGPT().context
    assert [(each.step, each.loss, each.tokens) for each in told] == [(2, whole[2], tokens)]
    assert latest(own) == "step-000003"
    assert not partial.exists()
    with the_only_rank():
        assert losses(program_of("1f1b", 1), resume=str(own)) == whole[3:]


@pytest.mark.slow
def test_replicas_save_once(tmp_path: Path) -> None:
    replicas = program_of("1f1b", 1, data_parallel=True)
    options = {"replicas": 2}
    found = losses(replicas, **options)
    folder = tmp_path / "saved"
    assert losses(replicas, **options, steps=2, save=str(folder)) == found[:2]
    assert losses(replicas, **options, resume=str(folder)) == found[2:]
    alone = tmp_path / "alone"
    losses(program_of("1f1b", 1), steps=2, save=str(alone))
    sizes = [
        sum(file.stat().st_size for file in path.glob("*/*.distcp")) for path in (folder, alone)
    ]
    assert sizes[0] < 1.2 * sizes[1]


@dataclass(frozen=True)
class Evaluated(SmallGPT):
    """Evaluated on the batches of later steps, with random numbers in each training step."""

    def stages(self, count: int) -> list[nn.Module]:
        return [nn.Sequential(make(), nn.Dropout(0.3)) for make in super().stages(count)]

    def eval_batch(self, step: int, microbatches: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        return self.batch(100 + step, microbatches)


@pytest.mark.usefixtures("here")
def test_evaluations_leave_training_as_it_is() -> None:
    plan, source, told = program_of("1f1b", 1), Evaluated(), list[StepRecord]()
    whole = run(plan, source, steps=STEPS)
    result = run(plan, source, steps=STEPS, eval_every=2, callbacks=[told.append])
    assert whole is not None
    assert result is not None
    assert (result.losses, whole.evaluations) == (whole.losses, ())
    assert [step for step, _ in result.evaluations] == [1, 3]
    assert [record.eval_loss for record in told if record.eval_loss] == [
        loss for _, loss in result.evaluations
    ]


@pytest.mark.usefixtures("here")
def test_memory_over_the_plans_limit_is_told_at_the_first_step() -> None:
    profile = Profile((StageProfile(1.0, 1.0, 1.0, 1000.0, 500.0),), 1, memory_limit=(1000.0,))
    plan = compile_schedule(build_family("1f1b", profile, MICROBATCHES))
    told: list[StepRecord] = []
    result = run(plan, SmallGPT(), steps=3, callbacks=[told.append])
    assert result is not None
    notes = [record.note for record in told]
    assert notes[0] is not None
    assert notes[0].startswith("rank 0 held ")
    assert notes[1:] == [None, None]
    assert notes[0] in (result.note or "")


@dataclass(frozen=True)
class Untrained(SmallGPT):
    """No step is to run."""

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        raise AssertionError("a step ran")


@dataclass(frozen=True)
class Momentum(Untrained):
    """By another optimizer."""

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("source", "line"),
    [
        (
            Untrained(width=32),
            "torch.Size([256, 16]) and current: torch.Size([256, 32]) for model.embedding.symbols",
        ),
        (Untrained(layers=5), "Missing key in checkpoint state_dict: model.blocks.4."),
        (Untrained(layers=3), "expected only what this run's model and optimizers have"),
        (Momentum(), ".weight.step: expected only what this run's model and optimizers have"),
    ],
)
def test_what_does_not_fit_is_one_line_before_the_first_step(
    saved: Path, source: SmallGPT, line: str
) -> None:
    before = sorted(saved.rglob("*"))
    with pytest.raises(PipeloomError) as caught:
        losses(program_of("1f1b", 1), source, resume=str(saved))
    assert line in str(caught.value)
    assert str(saved / "step-000002") in str(caught.value)
    assert (str(caught.value).count("\n"), caught.value.exit_code) == (0, 2)
    assert sorted(saved.rglob("*")) == before


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("file", "data", "line"),
    [
        (
            "__1_0.distcp",
            None,
            ": cannot be loaded: rank 0: FileNotFoundError",
        ),
        ("__1_0.distcp", b"x" * 2**20, ": cannot be loaded: rank 0: "),
        (
            ".metadata",
            b"",
            "/.metadata: cannot be read: EOFError: .*; expected a file as run --",
        ),
    ],
)
def test_a_damaged_file_is_named_and_nothing_is_lost(
    own: Path, file: str, data: bytes | None, line: str
) -> None:
    damaged = own / "step-000002" / file
    damaged.unlink() if data is None else damaged.write_bytes(data)
    before = {path: path.is_file() and path.read_bytes() for path in own.rglob("*")}
    with pytest.raises(PipeloomError, match=f"{damaged.parent}{line}") as caught:
        losses(program_of("1f1b", 1), resume=str(own), save=str(own))
    assert (str(caught.value).count("\n"), caught.value.exit_code) == (0, 2)
    assert {path: path.is_file() and path.read_bytes() for path in own.rglob("*")} == before


def test_what_cannot_be_written_is_one_line_and_the_last_one_stays(own: Path) -> None:
    (own / ".step-000003.partial").touch()  # where the folder would be
    with pytest.raises(LaunchError, match=r"step-000003\.partial: cannot be saved") as caught:
        losses(program_of("1f1b", 2), resume=str(own), save=str(own), every=1)
    assert (str(caught.value).count("\n"), caught.value.exit_code) == (0, 1)
    assert latest(own) == "step-000002"


@pytest.mark.usefixtures("here")
def test_options_of_the_optimizer_are_the_checkpoints(saved: Path, whole: list[float]) -> None:
    result = run(program_of("1f1b", 1), SmallGPT(learning_rate=0.5), steps=STEPS, resume=str(saved))
    assert result is not None
    assert list(result.losses) == whole[2:]


@pytest.mark.usefixtures("here")
def test_a_loss_that_is_no_number_is_told_and_the_answer_is_json() -> None:
    result = run(program_of("1f1b", 1), SmallGPT(learning_rate=1e300), steps=3)
    assert result is not None
    found = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert found["losses"] == [result.losses[0], None, None]
    assert "the loss is nan in step 1" in found["note"].split("; ")
