"""Pipelines whose stages are thawed, whose shapes vary, and which are closed and let go."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipeloom.compiler import compile_schedule
from pipeloom.ir import Program
from pipeloom.runtime import LaunchError, Pipeline, RunSettings, run_program
from tests.support.hub import on_threads, own
from tests.support.models import TinyTransformer
from tests.support.schedules import schedule


@pytest.mark.parametrize("stages_as", ["eager", "aten"])
def test_a_stage_whose_output_had_no_gradient_says_what_was_frozen(stages_as: str) -> None:
    line = r"^rank 0: .*was float32\[2, 4\] without gradient when it was tried: requires_grad of"
    with pytest.raises(LaunchError, match=line):
        on_threads(_thaws_a_stage, 2, (stages_as,), timeout=60)


def _thaws_a_stage(stages_as: Any) -> None:
    pipeline = Pipeline(
        compile_schedule(schedule("1f1b", 2, 2)),
        [nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 4)],
        loss=nn.functional.mse_loss,
        stages_as=stages_as,
        transport=own(),
    )
    for _ in range(2):
        pipeline.step(torch.randn(4, 4), target=torch.randn(4, 4))
        for module in pipeline.modules.values():
            module.requires_grad_(True)


@dataclass(frozen=True)
class Growing(TinyTransformer):
    """One row more in each step."""

    def batch(self, step: int, microbatches: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        return replace(TinyTransformer(), rows=1 + step).batch(step, microbatches)


def test_a_run_whose_shapes_vary() -> None:
    program = compile_schedule(schedule("1f1b", 2, 3), tied=[(0, 1)])
    settings = RunSettings(steps=3, varying_shapes=True)
    result = run_program(program, Growing(), settings)
    assert result is not None
    assert len(result.losses) == 3
    with pytest.raises(LaunchError, match="varying_shapes=True lets it"):
        run_program(program, Growing(), replace(settings, varying_shapes=False))


def test_a_closed_pipeline_is_kept_by_neither_its_modules_nor_its_optimizers() -> None:
    """Their hooks that wait for a verdict before a state dict."""
    plan = compile_schedule(schedule("1f1b", 2, 2), tied=[(0, 1)], post_validation=True)
    for states in on_threads(_closed, 2, (plan,), timeout=60).values():
        assert states == (True, False)


def _closed(plan: Program) -> tuple[bool, bool]:
    """Whether the pipeline is there before and after it is closed and let go."""
    source = TinyTransformer()
    pipeline = Pipeline.from_source(plan, source, clip_grad_norm=1.0, transport=own())
    inputs, targets = source.batch(0, 2)
    pipeline.step(inputs, target=targets)
    kept, there = (pipeline.modules, pipeline.optimizers), weakref.ref(pipeline)
    pipeline.close()
    before = there() is not None
    del pipeline
    gc.collect()
    assert all(kept)
    return before, there() is not None
