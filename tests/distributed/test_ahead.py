"""Steps ahead of the norm end with the bits of steps that wait for it; ranks go on to the next step
while others are in this one."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from threading import Event
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipeloom import LossScale, Pipeline
from pipeloom.compiler import compile_schedule
from pipeloom.ir import Program
from tests.parity.cases import ENDS, Case
from tests.parity.models import RunningMean
from tests.support.hub import Hub, on_threads, own
from tests.support.models import TinyTransformer
from tests.support.schedules import schedule

RANKS, MICROBATCHES, STEPS = 3, 4, 12
LARGE = 1e5
# what a gradient is multiplied by, by step and rank: on the first, one between, the last
EVENTS = {
    **{(1, 2): LARGE, (2, 1): math.nan, (4, 0): LARGE, (5, 2): math.inf},
    **{(7, 0): math.inf, (9, 1): LARGE, (11, 1): math.inf},
}


class Noisy(TinyTransformer):
    """Each stage but the ends has dropout, and a mean that each forward changes and uses."""

    def _stage(self, stage: int, count: int) -> nn.Module:
        module = super()._stage(stage, count)
        if 0 < stage < count - 1:
            return nn.Sequential(module, nn.Dropout(0.2), RunningMean())
        return module


def compiled(family: str, *, ahead: bool) -> Program:
    plan = schedule(family, RANKS, MICROBATCHES)
    return compile_schedule(plan, tied=[(0, plan.problem.stages - 1)], post_validation=ahead)


@pytest.mark.parametrize(
    ("family", "scale"), [("1f1b", None), ("zb-v", LossScale(1024.0, interval=3))]
)
def test_both_ways_end_with_the_same_bits(family: str, scale: LossScale | None) -> None:
    ways = [
        on_threads(trained, RANKS, (compiled(family, ahead=ahead), scale))
        for ahead in (True, False)
    ]
    torch.testing.assert_close(*ways, rtol=0.0, atol=0.0, equal_nan=True)


def trained(program: Program, scale: LossScale | None) -> dict[str, Any]:
    """All that there is after the steps, on one rank."""
    source, count = Noisy(torch.float32), program.schedule.problem.stages
    pipeline = Pipeline(
        program,
        source.stages(count),
        loss=source.loss,
        optimizer=partial(torch.optim.AdamW, lr=1e-2),
        tied=source.tied(count),
        clip_grad_norm=50.0,
        loss_scale=scale,
        transport=own(),
    )
    torch.manual_seed(pipeline.rank)
    now, losses = [0], list[Tensor]()
    parameter = next(p for m in pipeline.modules.values() for p in m.parameters())
    parameter.register_hook(lambda g: g * EVENTS.get((now[0], pipeline.rank), 1.0))  # type: ignore[no-untyped-call]
    history = []
    for now[0] in range(STEPS):
        inputs, targets = source.batch(now[0], MICROBATCHES)
        pipeline.step(inputs, target=targets, losses=losses)
        history.append([loss.item() for loss in losses])
    found: dict[str, Any] = {"losses": history}
    for s, module in pipeline.modules.items():
        found[f"{s}"] = [pipeline.optimizers[s].state_dict(), module.state_dict()]
        found[f"{s} gradients"] = [p.grad for p in module.parameters()]
    now_scale = pipeline.loss_scale
    found["scale"] = 0 if now_scale is None else (now_scale.scale, now_scale.good)
    found["norm"] = pipeline.grad_norm
    pipeline.close()
    return found


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
    source = TinyTransformer()
    pipeline = Pipeline(
        program,
        source.stages(program.schedule.problem.stages),
        loss=source.loss,
        optimizer=partial(torch.optim.SGD, lr=0.1),
        clip_grad_norm=50.0 if norms else None,
        tied=[],
        transport=own(),
    )
    if norms and pipeline.rank == RANKS - 1:
        update: Any = pipeline._step_end.update
        update.check_norm = _after(event, update.check_norm)
    if not norms and pipeline.rank == 1:
        optimizer: Any = next(iter(pipeline.optimizers.values()))
        optimizer.register_step_pre_hook(lambda *_: wait_for(event))
    for step in range(2):
        if step == 1 and pipeline.rank == 0:
            pipeline.store.module(0).register_forward_hook(lambda *_: event.set())
        inputs, targets = source.batch(step, MICROBATCHES)
        pipeline.step(inputs, target=targets)
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
