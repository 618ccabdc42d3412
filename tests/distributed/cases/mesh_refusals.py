"""What is said of meshes that do not fit their stages, on four processes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from pipeloom.compiler import compile_schedule
from pipeloom.ir import InputError
from pipeloom.runtime import ExecutionError, Pipeline, ShapeError
from tests.support.schedules import schedule

WIDTH, MICROBATCHES = 8, 2


class Part(nn.Module):
    """A norm of this process's part of each sequence, which nobody told that it is one."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.at, self.norm = at, nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(x.chunk(2, 1)[self.at])
        return out


def linear(mesh: DeviceMesh | None = None, style: Any = None) -> nn.Module:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH))
    return module if mesh is None else parallelize_module(module, mesh, {"0": style})


def refusals() -> dict[str, str]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "tp"))
    alone = init_device_mesh("cpu", (1, 2, 2), mesh_dim_names=("pp", "dp", "ep"))
    world = init_device_mesh("cpu", (4,), mesh_dim_names=("all",))
    tp, at = mesh["tp"], mesh.get_local_rank("tp")
    columns = partial(ColwiseParallel, output_layouts=Replicate())
    replicas = {"data_group": tp.get_group()}
    experts = nn.ModuleDict({str(at): nn.Linear(WIDTH, WIDTH)})
    split = nn.Sequential(Part(at), linear(tp, columns(input_layouts=Shard(1))))
    hands_on = linear(tp, ColwiseParallel(use_local_output=False))
    both = {"data_group": world.get_group()}
    named = {"norm_groups": {"0.*": alone["ep"].get_group()}}
    part = linear()
    fully_shard(part, mesh=alone["dp"])
    tied = {"tied": [[(0, "0.weight"), (1, "0.weight")]]}
    return {
        "ties": _said([linear(tp, columns()), linear()], mesh, **tied),
        "copies averaged": _said([linear(tp, RowwiseParallel())] * 2, mesh, **replicas),
        "experts unnamed": _said([experts] * 2, mesh, **replicas),
        "some experts": _said([linear()], alone, **both, **named),
        "sharded in part": _said([part], alone, **both),
        "over ranks": _said([linear(world, columns())] * 2, mesh),
        "output": _said([hands_on, linear()], mesh),
        "sequence": _said([split] * 2, mesh),
    }


def _said(stages: Sequence[nn.Module], mesh: DeviceMesh, **options: Any) -> str:
    """By a pipeline of these stages, one a rank, or by its first step."""
    program = compile_schedule(
        schedule("1f1b", len(stages), MICROBATCHES),
        tied=[(0, 1)] if "tied" in options else [],
        data_parallel="data_group" in options,
    )
    rank = 0 if mesh is None else mesh.get_local_rank("pp")
    with pytest.raises((InputError, ShapeError, ExecutionError)) as error:
        _step(
            Pipeline(
                program,
                {rank: stages[rank]},
                loss=nn.functional.mse_loss,
                optimizer=partial(torch.optim.SGD, lr=0.1),
                group=None if mesh is None else mesh["pp"].get_group(),
                **options,
            )
        )
    if mesh is not None:
        dist.barrier()
    return str(error.value)


def _step(pipeline: Pipeline) -> None:
    x = torch.randn(MICROBATCHES, 4, WIDTH)
    pipeline.step(x, target=x)
