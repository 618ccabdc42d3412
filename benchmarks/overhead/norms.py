"""Steps one after the other, with no barrier of the benchmark's own, on stages that sleep."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from pipeloom import Pipeline, compile_schedule
from pipeloom.ir import step_time
from pipeloom.runtime import launch_ranks

from .priority import before_others
from .sleeping import ROWS, WIDTH, OurStage, loss
from .steps import RANKS, Case

MILLISECONDS, STEPS, ROUNDS = 10.0, 12, 3
ANY, NONE = float("inf"), 1e-9


@dataclass(frozen=True, slots=True)
class Way:
    """``clip``: the norm that is allowed; None: nobody asks for one."""

    name: str
    clip: float | None
    ahead: bool


WAYS = (
    Way("none", None, False),
    Way("ahead", ANY, True),
    Way("waiting", ANY, False),
    Way("clipped", NONE, True),
)


def measured(case: Case) -> dict[str, Any]:
    """The median step of all ranks and rounds in milliseconds, by way; ``planned_ms``: that of
    iterations one after the other."""
    found = launch_ranks(_on_a_rank, RANKS, (case, STEPS, ROUNDS), timeout=3600)
    medians = {
        way.name: 1e3 * statistics.median(gap for rank in found.values() for gap in rank[way.name])
        for way in WAYS
    }
    planned = step_time(case.schedule())
    return {"steps": STEPS, "rounds": ROUNDS, "planned_ms": planned, "step_ms": medians}


def _on_a_rank(case: Case, steps: int, rounds: int) -> dict[str, list[float]]:
    """Seconds from each step's begin to the next one's, by way."""
    torch.set_num_threads(1)
    before_others()
    pipelines = {way.name: _pipeline(case, way) for way in WAYS}
    x = torch.zeros(case.microbatches * ROWS, WIDTH)
    found: dict[str, list[float]] = {name: [] for name in pipelines}
    for _ in range(rounds):
        for name, pipeline in pipelines.items():
            pipeline.barrier()
            begins = []
            for _ in range(steps + 2):
                begins.append(time.perf_counter())
                pipeline.step(x, target=x, return_outputs=False)
            pipeline.finish()
            gaps = [after - before for before, after in pairwise(begins)]
            found[name] += gaps[1:]
    for pipeline in pipelines.values():
        pipeline.close()
    return found


def _pipeline(case: Case, way: Way) -> Pipeline:
    schedule = case.schedule()
    return Pipeline(
        compile_schedule(schedule, post_validation=way.ahead),
        [lambda: OurStage(MILLISECONDS / 1e3)] * schedule.problem.stages,
        loss=loss,
        optimizer=partial(torch.optim.SGD, lr=0.0),
        clip_grad_norm=way.clip,
    )
