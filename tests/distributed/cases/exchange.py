"""What the tests of several programs on one pipeline's stages run on every rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from pipeloom.ir.errors import InputError
from pipeloom.ir.model.program import Program
from pipeloom.runtime.pipeline.pipeline import Pipeline
from tests.support.hub import own
from tests.support.models import TinyTransformer

COUNTS = (4, 2, 2, 6, 4, 6)  # microbatches of each step


def trained(programs: Mapping[int, Program]) -> None:
    """Steps of several numbers of microbatches, and an evaluation of one that no step had."""
    source = TinyTransformer()
    made: list[int] = []
    pipeline = Pipeline.from_source(
        programs[COUNTS[0]],
        source,
        programs=lambda count: made.append(count) or programs[count],
        transport=own(),
    )
    for step, count in enumerate(COUNTS):
        inputs, targets = source.batch(step, count)
        pipeline.step(inputs, target=targets, microbatches=count)
        assert {op.op.microbatch for op in pipeline.trace()} <= {*range(count)}
    assert made == [2, 6]  # each once
    scored: list[Tensor] = []
    inputs, targets = source.batch(0, 3)
    whole: Any = (torch.cat(list(inputs)), torch.cat(list(targets)))
    pipeline.eval(whole[0], target=whole[1], losses=scored, microbatches=3)
    assert sum(pipeline.gather(len(scored))) == 3
    pipeline.close()


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
