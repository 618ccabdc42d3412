"""Packed sequences with a program of its own for each step, and the same sequences one by one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

import pytest
import torch
from torch import Tensor

from examples.packed import Stage, joined, sequence_of, summed_loss
from pipeloom.ir.errors import InputError
from pipeloom.ir.model.program import Program
from pipeloom.runtime.pipeline.pipeline import Pipeline
from tests.support.models import named, worst

Step: TypeAlias = tuple[Program, list[list[int]], list[int]]
"""What a step runs; the sequences of each microbatch; the lengths of all."""


def trained(steps: Sequence[Step], wrong: Program) -> dict[str, Any]:
    """How far the worst parameter is from one process's; how many connections and buffers there
    were; the messages for a program with stages on other ranks and for what is no program.
    All ranks but the first have a copy of the last program."""
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
    told = []
    for other in [wrong, "packed"]:  # the second one ends the pipeline
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
