"""What the tests of several programs on one pipeline's stages run on every rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.program import Program
from pipeloom.runtime.pipeline.pipeline import Pipeline
from pipeloom.runtime.rank.loss_scale import LossScale
from tests.support.hub import own
from tests.support.models import TinyTransformer, named, whole, worst

COUNTS = (4, 2, 2, 6, 4, 6)  # microbatches of each step
ADDED = (1, 4)  # steps that leave their gradients to the next one
CLIP = 0.5


def trained(programs: Mapping[int, Program]) -> tuple[float, int, list[float]]:
    """How far the worst parameter is from one process's; how many were compared; all losses."""
    source = TinyTransformer()
    made: list[int] = []
    pipeline = Pipeline.from_source(
        programs[COUNTS[0]],
        source,
        programs=lambda count: made.append(count) or programs[count],
        clip_grad_norm=CLIP,
        loss_scale=LossScale(1024.0, interval=2),
        transport=own(),
    )
    history: list[float] = []
    for step, count in enumerate(COUNTS):
        inputs, targets = source.batch(step, count)
        losses: list[Tensor] = []
        given: Any = {"microbatches": count, "update": step not in ADDED}
        pipeline.step(inputs, target=targets, losses=losses, **given)
        history += [loss.item() for loss in losses]
        assert {op.op.microbatch for op in pipeline.trace()} <= {*range(count)}
    assert made == [2, 6]  # each once
    assert pipeline.loss_scale is not None
    assert pipeline.loss_scale.scale == 4096.0  # four updates
    pipeline.finish()
    expected = one_process(source, pipeline.num_stages)
    found = named(pipeline.modules)
    scored: list[Tensor] = []
    inputs, targets = source.batch(0, 3)
    whole: Any = (torch.cat(inputs), torch.cat(targets))
    pipeline.eval(whole[0], target=whole[1], losses=scored, microbatches=3)
    assert len(scored) in {0, 1, 2, 3}  # weights sent: each rank has those of its microbatches
    rows = pipeline.gather(len(scored))
    assert sum(rows) == 3
    pipeline.close()
    return worst(found, expected), len(found), history


def one_process(source: TinyTransformer, stages: int) -> dict[str, Tensor]:
    """Parameters after the same steps."""
    model = whole(source, stages)
    optimizer = source.optimizer(model.parameters())
    for step, count in enumerate(COUNTS):
        for x, y in zip(*source.batch(step, count), strict=True):
            (source.loss(model(x), y) / count).backward()
        if step not in ADDED:
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad()
    trained = model.named_parameters(remove_duplicate=False)
    return {name: p.detach() for name, p in trained}


def refused(programs: Mapping[int, Program]) -> list[str]:
    """What wrong numbers of microbatches are told before the first step, after which ranks go on,
    and after it."""
    source, first = TinyTransformer(), programs[COUNTS[0]]

    def of_family(count: int) -> Program:
        if count == 3:
            raise ZeroDivisionError("3 do not fit")
        return programs[2] if count == 5 else programs[count]

    pipeline = Pipeline.from_source(first, source, programs=of_family, transport=own())
    unlike = {"microbatches": 2} if pipeline.rank else {"program": first}
    asked: list[dict[str, Any]] = [unlike, {"microbatches": 2, "program": first}]
    asked += [{"microbatches": count} for count in (2 + 2 * pipeline.rank, 0, True, 3, 5, 2, 3)]
    told = []
    for given in asked:
        inputs, targets = source.batch(0, 2)
        try:
            pipeline.step(inputs, target=targets, **given)
        except InputError as error:
            told.append(str(error))
    return told
