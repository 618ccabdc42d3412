"""Checkpoints on disk go on elsewhere: in shards, on a mesh of another kind.

That one process goes on by torch's functions: test_state.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from pipeloom import Pipeline, compile_schedule
from tests.support.launched import in_one_launch
from tests.support.models import stepped
from tests.support.schedules import schedule
from tests.support.small_gpt import MICROBATCHES, SmallGPT

RANKS, STEPS = 2, 2
Losses: TypeAlias = tuple[float, ...]


def steps(pipeline: Pipeline, first: int, count: int = STEPS) -> Losses:
    history = []
    for step in range(first, first + count):
        rows = pipeline.gather(stepped(pipeline, SmallGPT(), step))
        history.append(sum(sorted(loss for row in rows for loss in row)) / MICROBATCHES)
    return tuple(history)


def sharded(folder: str) -> tuple[Losses, Losses]:
    """Losses of two replicas of one rank, in shards, without a break; then these as a pipeline, as
    one rank whose blocks are tensor parallel, and as shards again."""
    model = replace(SmallGPT(), tie_weights=False)
    first = in_shards(model)
    steps(first, 0)
    dcp.save({"pipeline": first}, checkpoint_id=f"{folder}/shards0")
    whole = steps(first, STEPS, 3 * STEPS)
    first.close()
    found: Losses = ()
    for i, make in enumerate((as_pipeline, tensor_parallel, in_shards)):
        pipeline = make(model)
        dcp.load({"pipeline": pipeline}, checkpoint_id=f"{folder}/shards{i}")
        found += steps(pipeline, (i + 1) * STEPS)
        dcp.save({"pipeline": pipeline}, checkpoint_id=f"{folder}/shards{i + 1}")
        pipeline.close()
    return whole, found


def as_pipeline(model: SmallGPT) -> Pipeline:
    return Pipeline.from_source(compile_schedule(schedule("zb-v", RANKS, MICROBATCHES)), model)


def tensor_parallel(model: SmallGPT) -> Pipeline:
    """One rank of two processes, which have shards of its blocks' products."""
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("tp", "pp"))
    (stage,) = model.stages(1)
    module = stage()
    for i in range(1, 1 + model.layers):
        plan = {f"{i}.widen": ColwiseParallel(), f"{i}.narrow": RowwiseParallel()}
        parallelize_module(module, mesh["tp"], plan)
    return one_rank(model, module, mesh)


def in_shards(model: SmallGPT) -> Pipeline:
    """Both processes train on the same, so that the average is that of one."""
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("dp", "pp"))
    (stage,) = model.stages(1)
    module = stage()
    fully_shard(module, mesh=mesh["dp"])
    return one_rank(model, module, mesh, data_group=mesh["dp"].get_group())


def one_rank(model: SmallGPT, module: nn.Module, mesh: DeviceMesh, **options: Any) -> Pipeline:
    plan = schedule("1f1b", 1, MICROBATCHES)
    return Pipeline(
        compile_schedule(plan, data_parallel=bool(options)),
        [module],
        loss=model.loss,
        optimizer=model.optimizer,
        names=model.names(1),
        group=mesh["pp"].get_group(),
        **options,
    )


def test_a_checkpoint_goes_on_as_a_pipeline_and_in_shards(tmp_path: Path) -> None:
    for unbroken, resumed in in_one_launch(RANKS, [(sharded, (str(tmp_path),))])[0]:
        assert resumed == pytest.approx(unbroken, rel=1e-12)
