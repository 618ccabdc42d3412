"""Packed sequences with a program of its own for each step, and the same sequences one by one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from examples.packed import Packed, Stage, joined, sequence_of, summed_loss
from pipeloom.ir.errors import InputError
from pipeloom.ir.model.program import Program
from pipeloom.ir.model.schedule import Schedule
from pipeloom.planner.tuning.repack import Repacker
from pipeloom.runtime.pipeline.pipeline import Pipeline
from pipeloom.runtime.train.settings import RunSettings
from pipeloom.runtime.train.train import train
from pipeloom.runtime.train.tune import tune
from pipeloom.runtime.train.tune_packed import Repack
from pipeloom.runtime.train.tuned_steps import TuneResult
from tests.support.models import named, worst

Step: TypeAlias = tuple[Program, list[list[int]], list[int]]
"""What a step runs; the sequences of each microbatch; the lengths of all."""


class Told(Repacker):
    """Counts the traces that it learns from, each time."""

    counts: list[int]

    def learn(self, traces: Sequence[Schedule]) -> None:
        self.counts = [*getattr(self, "counts", []), len(traces)]
        super().learn(traces)


class Source(Packed):
    """Short sequences on narrow stages."""

    def sizes(self, step: int) -> list[int]:
        count = 2 if step == 3 else 11  # fewer than microbatches, once
        return [int(x) for x in np.random.default_rng(step).integers(3, 40, count)]

    def stages(self, count: int) -> list[partial[Stage]]:
        return [partial(Stage, s, count) for s in range(count)]

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.5)


def tuned(program: Program, planner: Repack, count: int) -> tuple[TuneResult, float]:
    """So many steps, packed and planned anew each; how far losses are from one process's."""
    result = tune(program, Source(), RunSettings(steps=count, dtype="float64"), 2, planner)
    assert getattr(planner, "counts", [1, 2]) == [1, 2], "the first step is not learnt from"
    steps = [(program, [], Source().sizes(step)) for step in range(count)]
    _, losses = one_process(steps, program.schedule.problem.stages)
    return result, max(map(abs, map(float.__sub__, result.losses, losses)))


class Same(Source):
    """The same sequences in each step."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths_of_all = lengths

    def sizes(self, step: int) -> list[int]:
        return self.lengths_of_all


def ran(step: Step, count: int) -> float:
    """So many steps by the program that a batch was packed for, each of that batch: how far losses
    are from one process's."""
    program, _, lengths = step
    result = train(program, Same(lengths), RunSettings(steps=count, dtype="float64"))
    _, losses = one_process([step] * count, program.schedule.problem.stages)
    return max(map(abs, map(float.__sub__, result.losses, losses)))


def trained_and_tuned(
    steps: Sequence[Step], wrong: Program, planner: Repack
) -> tuple[dict[str, Any], tuple[TuneResult, float]]:
    found = trained(steps, wrong)
    found["ran"] = ran(steps[0], 3)
    return found, tuned(steps[0][0], planner, 4)


def trained(steps: Sequence[Step], wrong: Program) -> dict[str, Any]:
    """How far the worst parameter is from one process's; how many connections and buffers there
    were; what is told of a program with stages on other ranks, of what is none, and of one that
    other ranks are not given. Of the last program all ranks but the first have a copy."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    count = steps[0][0].schedule.problem.stages
    pipeline = Pipeline(
        steps[0][0],
        [partial(Stage, s, count) for s in range(count)],
        loss=summed_loss,
        optimizer=partial(torch.optim.SGD, lr=0.5),
        scale_grads=False,
        varying_shapes=True,
    )
    transports, losses = set(), list[float]()
    if pipeline.rank == 0:
        steps = [*steps[:-1], (steps[-2][0], *steps[-1][1:])]
    for program, rows, lengths in steps:
        found: list[Tensor] = []
        parts = [joined([sequence_of(i, lengths[i]) for i in row]) for row in rows]
        tokens, sequence, targets = ([part[k] for part in parts] for k in range(3))
        given: Any = {"loss_kwargs": {"tokens": sum(lengths)}, "program": program}
        pipeline.step(tokens, sequence, target=targets, losses=found, **given)
        losses.append(float(sum(found)))
        transports.add(id(pipeline._ran._transport))
        ran = {op.op.microbatch for op in pipeline.trace()}
        assert ran == set(range(program.schedule.problem.microbatches))
    others = [wrong, "packed", pipeline.program if pipeline.rank else steps[-1][0]]
    told = []
    for other in others:
        with pytest.raises(InputError) as refused:
            pipeline.step(tokens, sequence, target=targets, program=other)  # type: ignore[arg-type]
        told.append(str(refused.value))
    expected, history = one_process(steps, count)
    apart = worst(named(pipeline.modules), expected)
    last = pipeline.rank == pipeline.num_stages - 1
    pipeline.close()
    return {
        "apart": apart,
        "losses": max(map(abs, map(float.__sub__, losses, history))) if last else 0.0,
        "transports": len(transports),
        "told": told,
    }


def one_process(steps: Sequence[Step], count: int) -> tuple[dict[str, Tensor], list[float]]:
    """Parameters and losses of the same steps, each sequence by itself."""
    stages = [Stage(s, count) for s in range(count)]
    parameters = [p for stage in stages for p in stage.parameters()]
    optimizer, losses = torch.optim.SGD(parameters, lr=0.5), []
    for _, _, lengths in steps:
        optimizer.zero_grad()
        loss = torch.zeros(())
        for i, length in enumerate(lengths):
            tokens, sequence, targets = joined([sequence_of(i, length)])
            given: Any = (tokens, sequence)
            for stage in stages[:-1]:
                given = stage(*given)
            output: Any = stages[-1](*given)
            loss = loss + summed_loss(output, targets, tokens=sum(lengths))
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    return named(dict(enumerate(stages))), losses
