"""Stages as graphs in whole pipelines: traced once for each shape; refused where they hold other
bytes than was planned. That they train as one process does is in `tests/parity`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from pipeloom.compiler import compile_schedule
from pipeloom.runtime import Pipeline
from tests.support.hub import on_threads, own
from tests.support.models import TinyTransformer
from tests.support.schedules import schedule


def varying() -> dict[str, Any]:
    """Of a pipeline of shapes that vary: how many graphs its stage had after each step."""
    source = TinyTransformer(torch.float64)
    program = compile_schedule(schedule("zb-h1", 2, 2), tied=[(0, 1)])
    options: dict[str, Any] = {"stages_as": "aten", "varying_shapes": True, "transport": own()}
    pipeline = Pipeline.from_source(program, source, train=False, **options)
    counts, functions = [], []
    for rows in (2, 2, 3, 2):
        inputs, targets = replace(source, rows=rows).batch(0, 2)
        pipeline.step(inputs, target=targets)
        counts.append(pipeline.graphs)
        functions.append(pipeline.graph_functions)
    found = {"counts": counts, "eager": pipeline.eager_stages}
    found |= {"functions": functions, "why": pipeline.remade_graphs[pipeline.rank]}
    pipeline.close()
    return found


def test_each_shape_is_traced_once() -> None:
    for found in on_threads(varying, 2, timeout=120).values():
        assert found["counts"] == [1, 1, 2, 2]
        assert found["eager"] == {}
        assert found["functions"] == [3, 3, 6, 6]
        assert "made again after the first step, for inputs of [3, " in found["why"]
