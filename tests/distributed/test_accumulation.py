"""Without an optimizer gradients add up over steps, in the tensors that they were in."""

from __future__ import annotations

import pytest
import torch

from pipeloom.compiler import compile_schedule
from pipeloom.ir.model.program import Program
from pipeloom.runtime.errors import ExecutionError
from pipeloom.runtime.pipeline.pipeline import Pipeline
from tests.support.hub import on_threads, own
from tests.support.models import TinyTransformer, gradient, named, reference, worst
from tests.support.schedules import BOUNDS, V, schedule

SOURCE = TinyTransformer(torch.float64)
MICROBATCHES = 4


def compiled(family: str, ranks: int) -> Program:
    plan = schedule(family, ranks, MICROBATCHES)
    return compile_schedule(plan, tied=[(0, plan.problem.stages - 1)])


def trained(program: Program, steps: int) -> float:
    """The worst parameter's difference from one process, of gradients that begin as zeros."""
    pipeline = Pipeline.from_source(program, SOURCE, train=False, transport=own())
    for module in pipeline.modules.values():
        for parameter in module.parameters():
            parameter.grad = torch.zeros_like(parameter)
    for step in range(steps):
        inputs, targets = SOURCE.batch(step, MICROBATCHES)
        pipeline.step(inputs, target=targets)
    pipeline.close()
    expected = accumulated(program.schedule.problem.stages, steps)
    return worst(named(pipeline.modules, gradient), expected)


def accumulated(stages: int, steps: int) -> dict[str, torch.Tensor]:
    """One process's gradients of ``steps`` steps, added up."""
    total = reference(SOURCE, stages, MICROBATCHES, steps=1)[1]
    for step in range(1, steps):
        new = reference(Later(step), stages, MICROBATCHES, steps=1)[1]
        total = {name: grad + new[name] for name, grad in total.items()}
    return total


class Later(TinyTransformer):
    """The same model, whose data begin with those of a later step."""

    def __init__(self, first: int) -> None:
        super().__init__(torch.float64)
        object.__setattr__(self, "first", first)

    def batch(self, step: int, microbatches: int):  # type: ignore[no-untyped-def]
        return super().batch(self.first + step, microbatches)  # type: ignore[attr-defined]


def test_gradients_that_begin_as_zeros_are_those_of_one_process() -> None:
    outcomes = on_threads(trained, 2, (compiled("1f1b", 2), 2), timeout=120)
    assert max(outcomes.values()) <= BOUNDS[torch.float64]


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
