"""What torch's profiler sees of a step: each instruction under its text."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pipeloom.compiler import compile_schedule
from pipeloom.ir import timed
from pipeloom.runtime import ExecutionError, Pipeline
from tests.support.by_hand import by_hand

ORDER = "0F0 1F0 1B0 0B0 1W0 0W0 0F1 1F1 1BW1 0BW1"


def pipeline(last: nn.Module | None = None) -> Pipeline:
    """Two stages on one rank."""
    program = compile_schedule(timed(by_hand(ORDER)))
    stages = [nn.Linear(4, 4), last or nn.Linear(4, 4)]
    return Pipeline(program, stages, loss=nn.functional.mse_loss)


def step(tested: Pipeline) -> None:
    x = torch.ones(4, 4)
    tested.step(x, target=x)


def test_a_profiled_step_shows_its_instructions_in_their_order() -> None:
    tested = pipeline()
    step(tested)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        step(tested)
    row = [str(i) for i in tested.program.instructions[0]]
    shown = [e.name for e in profiled.events() if e.is_user_annotation and e.name in row]
    assert shown == row
    assert " ".join(name for name in shown if name[0].isdigit()) == ORDER


def test_an_evaluation_is_named_otherwise_than_a_step() -> None:
    tested = pipeline()
    x = torch.ones(4, 4)
    tested.eval(x, target=x)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiled:
        tested.eval(x, target=x)
    row = {str(i) for i in tested.program.instructions[0]}
    names = [e.name for e in profiled.events() if e.is_user_annotation]
    assert [n for n in names if "F" in n] == ["eval 0F0", "eval 1F0", "eval 0F1", "eval 1F1"]
    assert not row & set(names)


def test_a_failure_in_a_profiled_step_names_its_instruction() -> None:
    class Fails(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
                raise RuntimeError("no more")
            return x

    tested = pipeline(Fails())
    step(tested)
    with (
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
        pytest.raises(ExecutionError, match=r"op 1 of 10\), '1F0'.*no more"),
    ):
        step(tested)
