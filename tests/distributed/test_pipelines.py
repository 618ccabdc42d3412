"""Pipelines whose stages are thawed, whose gradients add up, whose shapes or dtypes vary, and which
are closed and let go."""

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
from pipeloom.runtime import ExecutionError, LaunchError, Pipeline, RunSettings, run_program
from tests.support.hub import on_threads, own
from tests.support.models import TinyTransformer
from tests.support.schedules import V, schedule


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


SOURCE = TinyTransformer()


def test_a_gradient_stays_the_tensor_that_it_was() -> None:
    """It may be a view of the caller's own buffer; without an optimizer it adds up over steps."""
    program = compile_schedule(schedule("1f1b", 2, 4), tied=[(0, 1)])
    assert all(on_threads(_same_tensors, 2, (program,), timeout=120).values())


def _same_tensors(program: Program) -> bool:
    pipeline = Pipeline.from_source(program, SOURCE, train=False, transport=own())
    inputs, targets = SOURCE.batch(0, 4)
    pipeline.step(inputs, target=targets)
    parameters = [p for module in pipeline.modules.values() for p in module.parameters()]
    before = [p.grad for p in parameters]
    pipeline.step(inputs, target=targets)
    pipeline.close()
    return all(p.grad is grad for p, grad in zip(parameters, before, strict=True))


def test_a_step_that_fails_loses_nothing_of_those_before() -> None:
    """Two stages on one rank; the first F of a step fails."""
    program = compile_schedule(schedule(V, 1, 4), tied=[(0, 1)])
    (shared,) = on_threads(_failing, 1, (program,), timeout=120).values()
    assert torch.equal(*shared)


def _failing(program: Program) -> tuple[Tensor | None, Tensor | None]:
    """The gradient of what is tied, before and after the step that fails."""
    pipeline = Pipeline.from_source(program, SOURCE, train=False, transport=own())
    inputs, targets = SOURCE.batch(0, 4)
    pipeline.step(inputs, target=targets)
    shared = pipeline.modules[0].get_parameter("embedding.weight")
    before = None if shared.grad is None else shared.grad.clone()
    pipeline.modules[0].register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ExecutionError):
        pipeline.step(inputs, target=targets)
    return before, shared.grad


def test_each_shape_is_traced_once() -> None:
    program = compile_schedule(schedule("zb-h1", 2, 2), tied=[(0, 1)])
    for counts, why in on_threads(_graphs, 2, (program,), timeout=120).values():
        assert counts == [(1, 3, 0), (1, 3, 0), (2, 6, 0), (2, 6, 0)]
        assert "made again after the first step, for inputs of [3, " in why


def _graphs(program: Program) -> tuple[list[tuple[int, int, int]], str]:
    """How many graphs, functions and eager stages there are after each step."""
    options: dict[str, Any] = {"stages_as": "aten", "varying_shapes": True, "transport": own()}
    pipeline = Pipeline.from_source(program, SOURCE, train=False, **options)
    counts = []
    for rows in (2, 2, 3, 2):
        inputs, targets = replace(SOURCE, rows=rows).batch(0, 2)
        pipeline.step(inputs, target=targets)
        counts.append((pipeline.graphs, pipeline.graph_functions, len(pipeline.eager_stages)))
    why = pipeline.remade_graphs[pipeline.rank]
    pipeline.close()
    return counts, why


def test_the_dtype_is_the_settings() -> None:
    program = compile_schedule(schedule(V, 1, 2), tied=[(0, 1)])
    narrow, wide = (
        run_program(program, SOURCE, RunSettings(steps=2, dtype=dtype, seed=3))
        for dtype in ("float32", "float64")
    )
    assert narrow is not None
    assert wide is not None
    assert narrow.losses == pytest.approx(wide.losses, rel=1e-4)
    assert narrow.losses != wide.losses
    assert 1.9 < wide.peak_memory[0] / narrow.peak_memory[0] <= 2.0
