"""Consecutive steps of sleeping stages with a gradient norm. The benchmark adds no barrier between
steps."""

from __future__ import annotations

import time
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

import torch

from pipeloom import Pipeline, compile_schedule
from pipeloom.ir import step_time
from pipeloom.runtime import launch_ranks

from ..clocks import before_others
from .sleeping import OurStage, loss
from .steps import RANKS, Asked

STEPS, ROUNDS = 12, 3
ANY, NONE = float("inf"), 1e-9
WAYS: dict[str, tuple[float | None, bool]] = {
    "none": (None, False),
    "ahead": (ANY, True),
    "waiting": (ANY, False),
    "clipped": (NONE, True),
}
"""By name of a way to handle the norm: the largest norm allowed (None if no norm is computed), and
whether post-validation is used."""


def measured(case: Asked) -> dict[str, Any]:
    """The median step time in milliseconds over all ranks and rounds, by way (:data:`WAYS`).

    ``planned_ms``: the planned interval between consecutive iterations.
    """
    found = launch_ranks(_on_a_rank, RANKS, (case,), timeout=3600)
    medians = {
        way: 1e3 * median(gap for rank in found.values() for gap in rank[way]) for way in WAYS
    }
    planned = step_time(case.schedule())
    return {"steps": STEPS, "rounds": ROUNDS, "planned_ms": planned, "step_ms": medians}


def _on_a_rank(case: Asked) -> dict[str, list[float]]:
    """The seconds from the start of each step to that of the next one, by way."""
    before_others()
    pipelines = {way: _pipeline(case, *how) for way, how in WAYS.items()}
    x = case.batch()
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(ROUNDS):
        for way, pipeline in pipelines.items():
            pipeline.barrier()
            begins = []
            for _ in range(STEPS + 2):
                begins.append(time.perf_counter())
                pipeline.step(x, target=x, return_outputs=False)
            pipeline.finish()
            found[way] += [after - before for before, after in pairwise(begins)][1:]
    for pipeline in pipelines.values():
        pipeline.close()
    return found


def _pipeline(case: Asked, clip: float | None, ahead: bool) -> Pipeline:
    program = compile_schedule(case.schedule(), post_validation=ahead)
    return Pipeline(
        program,
        [partial(OurStage, case.milliseconds / 1e3)] * program.schedule.problem.stages,
        loss=loss,
        optimizer=partial(torch.optim.SGD, lr=0.0),
        clip_grad_norm=clip,
    )
