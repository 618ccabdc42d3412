"""Pipelines whose stages are thawed, whose gradients add up, whose shapes, dtypes or programs vary,
whose ranks go on to the next step while others are in this one, and which are closed and let go.

That steps ahead of the norm train as one process does is in `tests/parity`."""

from __future__ import annotations

import gc
import pickle
import weakref
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from threading import Event
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeloom.compiler import compile_schedule
from pipeloom.ir import InputError, Profile, Program, StageProfile, timed
from pipeloom.runtime import (
    ExecutionError,
    LaunchError,
    Pipeline,
    RunSettings,
    launch_ranks,
    run_program,
)
from tests.parity.cases import ENDS, Case
from tests.support.by_hand import by_hand
from tests.support.hub import Hub, on_threads, own
from tests.support.inside import StageFunctions
from tests.support.models import TinyTransformer, Untied, stepped
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
        return replace(SOURCE, rows=1 + step).batch(step, microbatches)


SOURCE = TinyTransformer()
ALONE = compile_schedule(schedule(V, 1, 4), tied=[(0, 1)])
"""Two stages on one rank."""


@pytest.mark.usefixtures("here")
def test_a_run_whose_shapes_vary() -> None:
    settings = RunSettings(steps=3, varying_shapes=True)
    result = run_program(ALONE, Growing(), settings)
    assert result is not None
    assert len(result.losses) == 3
    with pytest.raises(
        ExecutionError, match="can only change from step to step with varying_shapes"
    ):
        run_program(ALONE, Growing(), replace(settings, varying_shapes=False))


def begun(program: Program, **options: Any) -> Pipeline:
    """After a step."""
    pipeline = Pipeline.from_source(program, SOURCE, transport=own(), **options)
    stepped(pipeline, SOURCE)
    return pipeline


def test_a_closed_pipeline_is_kept_by_neither_its_modules_nor_its_optimizers() -> None:
    """Their hooks that wait for a verdict before a state dict."""
    plan = compile_schedule(schedule("1f1b", 2, 2), tied=[(0, 1)], post_validation=True)
    for states in on_threads(_closed, 2, (plan,), timeout=60).values():
        assert states == (True, False)


def _closed(plan: Program) -> tuple[bool, bool]:
    """Whether the pipeline is there before and after it is closed and let go."""
    pipeline = begun(plan, clip_grad_norm=1.0)
    kept, there = (pipeline.modules, pipeline.optimizers), weakref.ref(pipeline)
    pipeline.close()
    before = there() is not None
    del pipeline
    gc.collect()
    assert all(kept)
    return before, there() is not None


def test_a_gradient_stays_the_tensor_that_it_was() -> None:
    """It may be a view of the caller's own buffer; without an optimizer it adds up over steps."""
    program = compile_schedule(schedule("1f1b", 2, 4), tied=[(0, 1)])
    assert all(on_threads(_same_tensors, 2, (program,), timeout=120).values())


def _same_tensors(program: Program) -> bool:
    pipeline = begun(program, train=False)
    parameters = [p for module in pipeline.modules.values() for p in module.parameters()]
    before = [p.grad for p in parameters]
    stepped(pipeline, SOURCE)
    pipeline.close()
    return all(p.grad is grad for p, grad in zip(parameters, before, strict=True))


def test_a_step_that_fails_loses_nothing_of_those_before() -> None:
    """The first F of a step fails, after which the gradient of what is tied is as before."""
    ((before, after),) = on_threads(_failing, 1, timeout=120).values()
    assert torch.equal(before, after)


def _failing() -> tuple[Tensor | None, Tensor | None]:
    pipeline = begun(ALONE, train=False)
    shared = pipeline.modules[0].get_parameter("embedding.weight")
    before = None if shared.grad is None else shared.grad.clone()
    pipeline.modules[0].register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ExecutionError):
        stepped(pipeline, SOURCE)
    return before, shared.grad


def test_each_shape_is_traced_once() -> None:
    program = compile_schedule(schedule("zb-h1", 2, 2), tied=[(0, 1)])
    with patch.object(StageFunctions, "traced", wraps=StageFunctions.traced) as traced:
        for counts in on_threads(_eager, 2, (program,), timeout=120).values():
            assert counts == [0, 0, 0, 0]
    assert traced.call_count == 2 * 2  # two ranks, two shapes


def _eager(program: Program) -> list[int]:
    """How many stages run eagerly after each step."""
    pipeline = begun(program, train=False, stages_as="aten", varying_shapes=True)
    counts = []
    for rows in (2, 2, 3, 2):
        stepped(pipeline, replace(SOURCE, rows=rows))
        counts.append(len(pipeline.eager_stages))
    pipeline.close()
    return counts


def test_exchanges_leave_no_connections_of_relayed_norms_behind() -> None:
    """Two stages on three ranks: the last one relays nothing."""
    profile = Profile((StageProfile(1.0, 1.0, 1.0),) * 2, 3)
    plan = timed(by_hand("0F0 0F1 0BW0 0BW1", "1F0 1BW0 1F1 1BW1", "", profile=profile))
    programs = [compile_schedule(plan, post_validation=True) for _ in range(4)]
    for counts in launch_ranks(_groups, 3, (programs,), timeout=100).values():
        assert counts == counts[:1] * 3


def _groups(programs: Sequence[Program]) -> list[int]:
    """The process groups that there are after each step by a program of its own."""
    stages = [nn.Linear(2, 2), nn.Linear(2, 2)]
    options: Any = {"optimizer": partial(torch.optim.SGD, lr=0.1), "clip_grad_norm": 1.0}
    pipeline = Pipeline(programs[0], stages, loss=nn.functional.mse_loss, **options)
    found = []
    for program in programs[1:]:
        pipeline.step(torch.ones(4, 2), target=torch.zeros(4, 2), program=program)
        found.append(len(dist.distributed_c10d._world.pg_map))
    pipeline.close()
    return found


@pytest.mark.parametrize(
    ("family", "ranks", "message"),
    [
        ("weipipe-interleave", 2, "expected one that sends activations, as the pipeline's, n"),
        ("zb-v", 1, r"expected its stages on ranks \[\[0\]\], where the pipeline has them"),
    ],
)
def test_programs_that_cannot_share_stages_are_refused(
    family: str, ranks: int, message: str
) -> None:
    other = compile_schedule(schedule(family, ranks, 2))
    pipeline = Pipeline(compile_schedule(schedule("1f1b", 1, 2)), [nn.Linear(2, 2)])
    with pytest.raises(InputError, match=f"program: {message}"):
        pipeline.step(torch.ones(2, 2), target=torch.ones(2, 2), program=other)


RANKS, MICROBATCHES = 3, 4


def wait_for(event: Event) -> None:
    """Lets other ranks run until it is set."""
    hub: Hub = own()._hub  # type: ignore[union-attr]
    hub.wait_for(event.is_set, "the next step of another rank", 60.0)


@pytest.mark.parametrize("plan", ["zb-h1", "weipipe-interleave", ENDS])
def test_a_rank_goes_on_to_the_next_step_while_another_is_in_this_one(plan: str) -> None:
    """The last one has a norm, or where weights are sent rank 1 steps, when rank 0 has run an op of
    the next iteration."""
    case = Case.of(0, 0, {"plan": plan, "ranks": RANKS, "microbatches": MICROBATCHES})
    program = compile_schedule(case.schedule(MICROBATCHES), post_validation=plan == "zb-h1")
    assert all(on_threads(_goes_on, RANKS, (program, plan == "zb-h1", Event())).values())


def _goes_on(program: Program, norms: bool, event: Event) -> bool:
    clip = 50.0 if norms else None
    pipeline = Pipeline.from_source(program, Untied(), clip_grad_norm=clip, transport=own())
    if norms and pipeline.rank == RANKS - 1:
        update: Any = pipeline._own.step_end
        update.check_norm = _after(event, update.check_norm)
    if not norms and pipeline.rank == 1:
        optimizer: Any = next(iter(pipeline.optimizers.values()))
        optimizer.register_step_pre_hook(lambda *_: wait_for(event))
    for step in range(2):
        if step == 1 and pipeline.rank == 0:
            pipeline.store.module(0).register_forward_hook(lambda *_: event.set())
        stepped(pipeline, SOURCE)
        if step == 0:
            copies = pickle.loads(pickle.dumps(pipeline.modules)), deepcopy(pipeline.modules)
            for module in (module for modules in copies for module in modules.values()):
                module.state_dict()  # of a copy, which waits for nothing
    pipeline.close()
    return event.is_set()


def _after(event: Event, call: Callable[[], Any]) -> Callable[[], Any]:
    def waited() -> Any:
        wait_for(event)
        return call()

    return waited
