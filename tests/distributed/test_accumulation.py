"""Without an optimizer gradients add up over steps, in the tensors that they were in."""

from __future__ import annotations

import pytest
import torch

from pipeloom.compiler import compile_schedule
from pipeloom.ir import Program
from pipeloom.runtime import ExecutionError, Pipeline
from tests.support.hub import on_threads, own
from tests.support.models import TinyTransformer
from tests.support.schedules import V, schedule

SOURCE = TinyTransformer(torch.float64)
MICROBATCHES = 4


def compiled(family: str, ranks: int) -> Program:
    plan = schedule(family, ranks, MICROBATCHES)
    return compile_schedule(plan, tied=[(0, plan.problem.stages - 1)])


def test_a_gradient_stays_the_tensor_that_it_was() -> None:
    """It may be a view of the caller's own buffer."""
    assert all(on_threads(_same_tensors, 2, (compiled("1f1b", 2),), timeout=120).values())


def _same_tensors(program: Program) -> bool:
    pipeline = Pipeline.from_source(program, SOURCE, train=False, transport=own())
    inputs, targets = SOURCE.batch(0, MICROBATCHES)
    pipeline.step(inputs, target=targets)
    parameters = [p for module in pipeline.modules.values() for p in module.parameters()]
    before = [p.grad for p in parameters]
    pipeline.step(inputs, target=targets)
    pipeline.close()
    return all(p.grad is grad for p, grad in zip(parameters, before, strict=True))


def test_a_step_that_fails_loses_nothing_of_those_before() -> None:
    for kept in on_threads(_failing, 1, (compiled(V, 1),), timeout=120).values():
        assert kept


def _failing(program: Program) -> bool:
    """Whether the shared gradient is at least there, as it was before a step whose first F
    failed."""
    pipeline = Pipeline.from_source(program, SOURCE, train=False, transport=own())
    inputs, targets = SOURCE.batch(0, MICROBATCHES)
    pipeline.step(inputs, target=targets)
    shared = pipeline.modules[0].get_parameter("embedding.weight")
    assert shared.grad is not None
    before = shared.grad.clone()
    pipeline.modules[0].register_forward_pre_hook(_fail)
    with pytest.raises(ExecutionError):
        pipeline.step(inputs, target=targets)
    return shared.grad is not None and torch.equal(shared.grad, before)


def _fail(*_: object) -> None:
    raise ZeroDivisionError
