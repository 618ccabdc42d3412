"""Ranks go on to the next step while others are in this one. That steps ahead of the norm train as
one process does is in `tests/parity`."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from threading import Event
from typing import Any

import pytest
import torch

from pipeloom import Pipeline
from pipeloom.compiler import compile_schedule
from pipeloom.ir import Program
from tests.parity.cases import ENDS, Case
from tests.support.hub import Hub, on_threads, own
from tests.support.models import TinyTransformer

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
