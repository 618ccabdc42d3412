"""Steps recorded and launched again: what is called when, over a recording that is made up, and
what is refused."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from pipeloom.compiler import compile_schedule
from pipeloom.ir.errors import InputError
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.runtime.errors import ShapeError
from pipeloom.runtime.executor.cuda_graph import WARMUP, GraphedSteps, SharedRecording
from pipeloom.runtime.executor.stage_runner import Cell
from pipeloom.runtime.launch.threads import launch_local
from pipeloom.runtime.measure.op_timer import HostClock
from pipeloom.runtime.optim.optimizers import capturable
from pipeloom.runtime.pipeline.pipeline import Pipeline
from pipeloom.runtime.rank.checks import check_graph
from pipeloom.runtime.rank.options import PipelineOptions
from pipeloom.runtime.train.settings import RunSettings
from pipeloom.runtime.transport import Routes, connect
from pipeloom.solver.families import build_family
from tests.distributed.cases.remat import given_up


class FakeRecording:
    """A launch runs ``recorded``: what the device was told between begin and end."""

    def __init__(self, log: list[str], recorded: Callable[[], None] = lambda: None) -> None:
        self.log, self.recorded = log, recorded

    def within(self) -> AbstractContextManager[object]:
        return nullcontext()

    def begin(self) -> None:
        self.log.append("begin")

    def end(self) -> None:
        self.log.append("end")

    def launch(self) -> None:
        self.log.append("launch")
        self.recorded()


class Machine:
    """One cell whose loss is the sum of its input, of its option and of its target."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.cell = Cell(None)
        self.loss = torch.zeros(())
        self._read: tuple[Tensor, ...] = ()
        transport = connect(Routes.of((), (), 30.0), torch.device("cpu"))
        recording = FakeRecording(self.log, self._compute)
        self._steps = GraphedSteps(recording, transport, [self.cell])

    def step(self, value: float, *, rows: int = 2, keep: bool = False) -> float:
        self.cell.inputs = (torch.full((rows,), value),)
        self.cell.options, self.cell.target = (
            {"scale": torch.full((), value)},
            torch.full((), value),
        )
        self._steps.run(self._issue, HostClock(0), keep=keep)
        assert self.cell.loss is not None
        return self.cell.loss.item()

    def _issue(self) -> None:
        self.log.append("issue")
        self._read = (*self.cell.inputs, self.cell.options["scale"], self.cell.target)
        self._compute()
        self.cell.inputs, self.cell.target = (), None
        self.cell.loss, self.cell.result = self.loss, self.loss + 1

    def _compute(self) -> None:
        self.loss.copy_(torch.stack([x.sum() for x in self._read]).sum())


def test_some_steps_run_then_one_is_recorded_and_launched_from_then_on() -> None:
    machine = Machine()
    found = [machine.step(float(i)) for i in range(WARMUP + 3)]
    assert found == [4.0 * i for i in range(WARMUP + 3)]
    assert machine.log == [*["issue"] * WARMUP, "begin", "issue", "end", *["launch"] * 3]


def test_a_loss_is_not_overwritten_by_the_next_step() -> None:
    machine = Machine()
    for i in range(WARMUP + 1):
        machine.step(float(i))
    before = machine.cell.loss
    machine.step(100.0)
    assert before is not None
    assert before.item() == 4.0 * WARMUP


def test_what_was_recorded_is_not_given_other_shapes_or_asked_for_outputs() -> None:
    machine = Machine()
    for _ in range(WARMUP + 1):
        machine.step(1.0)
    with pytest.raises(ShapeError, match=r"given float32\[3\] where .* was given float32\[2\]"):
        machine.step(1.0, rows=3)
    with pytest.raises(InputError, match="return_outputs: expected False"):
        machine.step(1.0, keep=True)


def test_outputs_come_from_each_launch() -> None:
    machine = Machine()
    for i in range(WARMUP + 2):
        machine.step(float(i), keep=True)
        assert machine.cell.result is not None


def test_virtual_ranks_record_between_begin_and_end_of_the_first() -> None:
    log: list[str] = []
    launch_local(_recorded, 3, (log,), timeout=30)
    assert log[0] == "begin"
    assert sorted(log[1:4]) == ["rank 0", "rank 1", "rank 2"]
    assert log[4:6] == ["end", "launch"]
    assert sorted(log[6:]) == ["after 0", "after 1", "after 2"]


def _recorded(log: list[str]) -> None:
    transport = connect(Routes.of((), (), 30.0), torch.device("cpu"))
    own = FakeRecording(log) if transport.rank == 0 else None
    recording = SharedRecording(transport, torch.device("cpu"), own)
    recording.begin()
    log.append(f"rank {transport.rank}")
    recording.end()
    recording.launch()
    log.append(f"after {transport.rank}")


STAGES = Profile((StageProfile(1.0, 1.0, 1.0, t_r=1.0, m_r=0.1),) * 2, 2)
PROGRAM = compile_schedule(build_family("1f1b", STAGES, 2))
GPU = torch.device("cuda", 0)
STEPPED = PipelineOptions(optimizer=torch.optim.SGD)


def _adam(**options: Any) -> dict[int, torch.optim.Optimizer]:
    return {1: torch.optim.AdamW([nn.Parameter(torch.zeros(1))], **options)}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"device": torch.device("cpu")}, "a CUDA device, got cpu"),
        (
            {"options": replace(STEPPED, varying_shapes=True)},
            "shapes that are the same in each step",
        ),
        (
            {"options": replace(STEPPED, clip_grad_norm=1.0)},
            "neither clip_grad_norm nor loss_scale",
        ),
        ({"sharded": True}, "whole stages, got some wrapped in fully_shard"),
        (
            {"options": replace(STEPPED, data_group=cast("Any", "a group"))},
            "no data_group: averages over replicas",
        ),
        ({"options": PipelineOptions()}, "an optimizer, which steps within the graph, got None"),
        ({"optimizers": _adam()}, "optimizers with capturable=True, got AdamW of stage 1 without"),
        (
            {"program": compile_schedule(build_family("pipedream", STAGES, 2))},
            "a program that steps once an iteration",
        ),
        (
            {"program": compile_schedule(given_up(build_family("1f1b", STAGES, 2), "R"))},
            "no recomputed forward",
        ),
    ],
)
def test_what_cannot_be_a_graph_is_one_line(changed: dict[str, Any], expected: str) -> None:
    given: dict[str, Any] = {
        "program": PROGRAM,
        "device": GPU,
        "options": STEPPED,
        "optimizers": {0: torch.optim.SGD([nn.Parameter(torch.zeros(1))])},
        "sharded": False,
    }
    check_graph(**given)
    with pytest.raises(InputError, match=f"^cuda_graph: expected {expected}") as refused:
        check_graph(**given | changed)
    assert "\n" not in str(refused.value)


def test_an_optimizer_is_made_capturable_where_it_knows_of_it() -> None:
    check = partial(check_graph, PROGRAM, GPU, STEPPED, sharded=False)
    parameter = nn.Parameter(torch.zeros(1))
    for kind in (torch.optim.AdamW, torch.optim.SGD):
        check({0: capturable(kind)([parameter])})


def test_a_pipeline_and_a_run_on_a_cpu_refuse() -> None:
    schedule = build_family("1f1b", Profile((StageProfile(1.0, 1.0, 1.0),), 1), 2)
    with pytest.raises(InputError, match="cuda_graph: expected a CUDA device, got cpu"):
        Pipeline(
            compile_schedule(schedule), [nn.Linear(1, 1)], loss=nn.functional.mse_loss,
            optimizer=torch.optim.SGD, cuda_graph=True,
        )  # fmt: skip
    with pytest.raises(InputError, match="cuda_graph: expected device cuda, got cpu"):
        RunSettings(cuda_graph=True)
