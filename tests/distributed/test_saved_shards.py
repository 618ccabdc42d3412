"""Checkpoints on disk go on elsewhere: in one process by torch's functions, in shards, on a mesh of
another kind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from pipeloom import Pipeline, compile_schedule
from pipeloom.runtime import launch_ranks
from tests.support.schedules import schedule
from tests.support.small_gpt import MICROBATCHES, SmallGPT, program_of

RANKS, STEPS = 2, 2
FLAT = StateDictOptions(flatten_optimizer_state_dict=True)
Losses: TypeAlias = tuple[float, ...]


def steps(pipeline: Pipeline, first: int, count: int = STEPS) -> Losses:
    history = []
    for step in range(first, first + count):
        inputs, targets = SmallGPT().batch(step, pipeline.microbatches)
        losses: list[Tensor] = []
        pipeline.step(inputs, target=targets, losses=losses)
        rows = pipeline.gather([loss.item() for loss in losses])
        history.append(sum(sorted(loss for row in rows for loss in row)) / MICROBATCHES)
    return tuple(history)


def save_and_go_on(folder: str) -> tuple[Losses, Losses, Losses]:
    """Losses of chimera without a break; of shards without a break, and after breaks."""
    pipeline = Pipeline.from_source(program_of("chimera", RANKS), SmallGPT())
    first = steps(pipeline, 0)
    dcp.save({"pipeline": pipeline}, checkpoint_id=f"{folder}/chimera")
    whole = first + steps(pipeline, STEPS)
    pipeline.close()
    return whole, *sharded(folder)


def sharded(folder: str) -> tuple[Losses, Losses]:
    """Two replicas of one rank, in shards, without a break; then these as a pipeline, as one rank
    whose blocks are tensor parallel, and as shards again."""
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


class Whole(nn.Module):
    """The model in one process, with its own names."""

    def __init__(self) -> None:
        super().__init__()
        units = [make() for _, make in SmallGPT().named_layers()]
        self.embedding, self.blocks, self.head = units[0], nn.Sequential(*units[1:-1]), units[-1]
        self.head.symbols.weight = self.embedding.symbols.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.blocks(self.embedding(x)))
        return out


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, first: int) -> list[float]:
    history = []
    for step in range(first, first + STEPS):
        optimizer.zero_grad()
        pairs = zip(*SmallGPT().batch(step, MICROBATCHES), strict=True)
        loss = torch.stack([SmallGPT().loss(model(x), y) for x, y in pairs]).mean()
        torch.autograd.backward(loss)
        optimizer.step()
        history.append(loss.item())
    return history


def test_a_checkpoint_goes_on_in_one_process_as_a_pipeline_and_in_shards(tmp_path: Path) -> None:
    found = launch_ranks(save_and_go_on, RANKS, (str(tmp_path),), timeout=240, message_timeout=60)
    for _, unbroken, resumed in found.values():
        assert resumed == pytest.approx(unbroken, rel=1e-12)
    whole = found[0][0]
    model = Whole()
    optimizer = SmallGPT().optimizer(model.parameters())
    state = {
        "pipeline": {
            "model": get_model_state_dict(model),
            "optimizer": get_optimizer_state_dict(model, optimizer, options=FLAT),
        }
    }
    dcp.load(state, checkpoint_id=tmp_path / "chimera", no_dist=True)
    model.load_state_dict(state["pipeline"]["model"])
    set_optimizer_state_dict(model, optimizer, state["pipeline"]["optimizer"], options=FLAT)
    assert trained(model, optimizer, STEPS) == pytest.approx(whole[STEPS:], rel=1e-12)
