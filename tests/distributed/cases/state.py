"""What the tests of saved state run on every rank: a pipeline saved, and others that go on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor

from examples.gpt import GPT
from pipeloom import Pipeline
from pipeloom.compiler import compile_schedule
from pipeloom.runtime.transport import whereabouts
from tests.distributed.cases.gradients import schedule

RANKS, MICROBATCHES, STEPS = 2, 4, 2
MODEL = GPT(
    layers=4, width=16, heads=2, context=8, microbatch=1, tie_weights=True, dtype=torch.float64
)


@dataclass(frozen=True)
class Outcome:
    """Losses of the steps after ``saved`` was loaded by a pipeline of ``family``."""

    saved: str
    family: str
    losses: tuple[float, ...]


def make(family: str, **options: Any) -> Pipeline:
    plan = schedule(family, RANKS, MICROBATCHES)
    tied = [sorted({s for s, _ in group}) for group in MODEL.tied(plan.problem.stages)]
    relays = options.pop("relays", False)
    program = compile_schedule(plan, tied=tied, post_validation=relays)
    rank, _ = whereabouts()
    return Pipeline.from_source(program, MODEL, verify=rank == 0, **options)


def steps(pipeline: Pipeline, first: int, count: int = STEPS) -> tuple[float, ...]:
    history = []
    for step in range(first, first + count):
        inputs, targets = MODEL.batch(step, pipeline.microbatches)
        losses: list[Tensor] = []
        pipeline.step(inputs, target=targets, losses=losses)
        rows = pipeline.gather([loss.item() for loss in losses])
        history.append(sum(sorted(loss for row in rows for loss in row)) / MICROBATCHES)
    return tuple(history)


def save(pipeline: Pipeline, folder: str) -> None:
    dcp.save({"pipeline": pipeline}, checkpoint_id=folder)


def load(pipeline: Pipeline, folder: str) -> None:
    dcp.load({"pipeline": pipeline}, checkpoint_id=folder)


def run_cases(
    pairs: list[tuple[str, str]], folder: str
) -> dict[tuple[str, str], tuple[float, ...]]:
    """Losses without a break, by (family, family), and with one."""
    torch.set_num_threads(1)
    found = {}
    for family in dict.fromkeys(name for pair in pairs for name in pair):
        pipeline = make(family)
        first = steps(pipeline, 0)
        save(pipeline, f"{folder}/{family}")
        found[family, ""] = first + steps(pipeline, STEPS)
        pipeline.close()
    for saved, family in pairs:
        pipeline = make(family)
        load(pipeline, f"{folder}/{saved}")
        found[saved, family] = steps(pipeline, STEPS)
        pipeline.close()
    return found
