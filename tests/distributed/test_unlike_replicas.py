"""Replicas that do not agree how many microbatches a step has raise alike, and go on."""

from __future__ import annotations

from typing import Any

import pytest
from torch.distributed.device_mesh import init_device_mesh

from pipeloom.compiler import compile_schedule
from pipeloom.ir.errors import InputError
from pipeloom.runtime.launch.processes import launch
from pipeloom.runtime.pipeline.pipeline import Pipeline
from tests.support.models import TinyTransformer
from tests.support.schedules import schedule


def test_replicas_with_unlike_numbers_of_microbatches_raise_alike() -> None:
    assert len(launch(_unlike, 4, timeout=240, message_timeout=60)) == 4


def _unlike() -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "pp"))
    groups: Any = {"group": mesh["pp"].get_group(), "data_group": mesh["dp"].get_group()}
    replica, source = mesh.get_local_rank("dp"), TinyTransformer()
    four, two = (
        compile_schedule(schedule("1f1b", 2, count), tied=[(0, 1)], data_parallel=True)
        for count in (4, 2)
    )
    pipeline = Pipeline.from_source(four, source, programs=lambda _: two, **groups)
    with pytest.raises(InputError, match=r"^microbatches: .* on all replicas, got \[4, 2\]$"):
        _step(pipeline, source, 2 if replica else 4)
    where = "" if replica else "replica 1, "
    with pytest.raises(InputError, match=f"^{where}rank 0: microbatches: expected a number"):
        _step(pipeline, source, 0 if replica else 4)
    for count in (2, 4):
        _step(pipeline, source, count)
    pipeline.close()


def _step(pipeline: Pipeline, source: TinyTransformer, count: int) -> None:
    inputs, targets = source.batch(0, count)
    pipeline.step(inputs, target=targets, microbatches=count)
