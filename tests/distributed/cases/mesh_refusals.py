"""What is said of stages that do not fit their mesh, or reduce by themselves, on four processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._composable import replicate
from torch.distributed._composable.replicate_with_fsdp import replicate as replicate_with_fsdp
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

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


def linear(mesh: DeviceMesh | None = None, style: Any = None) -> Any:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH))
    return module if mesh is None else parallelize_module(module, mesh, {"0": style})


def in_part(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    return nn.Sequential(DistributedDataParallel(module, process_group=mesh.get_group()))


def compiled(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    wrapped = torch.compile(DistributedDataParallel(module, process_group=mesh.get_group()))
    assert isinstance(wrapped, nn.Module)
    return wrapped


WRAPS: dict[str, Callable[[nn.Module, DeviceMesh], nn.Module]] = {
    "it is wrapped in DistributedDataParallel": lambda module, mesh: DistributedDataParallel(
        module, process_group=mesh.get_group()
    ),
    "0 is wrapped in DistributedDataParallel": in_part,
    "_orig_mod is wrapped in DistributedDataParallel": compiled,
    "it is wrapped in FullyShardedDataParallel": lambda module, mesh: FullyShardedDataParallel(
        module, process_group=mesh.get_group(), device_id=torch.device("cpu")
    ),
    "it is wrapped in replicate": lambda module, mesh: replicate(
        module, process_group=mesh.get_group()
    ),
    "it is wrapped in replicate, ": lambda module, mesh: replicate_with_fsdp(module, mesh=mesh),
}
"""What reduces by itself, where ``data_group`` should."""


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
    part, block, bare = linear(), nn.Sequential(linear(), linear()), linear()
    fully_shard(part, mesh=alone["dp"])
    fully_shard(block[0], mesh=tp)
    fully_shard(bare, mesh=tp)
    tied = {"tied": [[(0, "0.weight"), (1, "0.weight")]]}
    return {
        "ties": _said([linear(tp, columns()), linear()], mesh, **tied),
        "copies averaged": _said([linear(tp, RowwiseParallel())] * 2, mesh, **replicas),
        "experts unnamed": _said([experts] * 2, mesh, **replicas),
        "some experts": _said([linear()], alone, **both, **named),
        "sharded in part": _said([part], alone, **both),
        "block sharded": _said([block] * 2, mesh, **replicas),
        "shards averaged by nobody": _said([bare] * 2, mesh),
        "over ranks": _said([linear(world, columns())] * 2, mesh),
        "output": _said([hands_on, linear()], mesh),
        "sequence": _said([split] * 2, mesh),
        "saved beside others": _unsaved(alone["pp"]),
        "saved of shards": _unsaved(alone["pp"], {"0.weight": tp.get_group()}),
        **{what: _said([wrap(linear(), tp)] * 2, mesh) for what, wrap in WRAPS.items()},
    }


def _said(stages: Sequence[nn.Module], mesh: DeviceMesh, **options: Any) -> str:
    """By a pipeline of these stages, one a rank, or by its first step."""
    program = compile_schedule(
        schedule("1f1b", len(stages), MICROBATCHES),
        tied=[(0, 1)] if "tied" in options else [],
        data_parallel="data_group" in options,
    )
    rank = mesh.get_local_rank("pp")
    with pytest.raises((InputError, ShapeError, ExecutionError)) as error:
        _step(
            Pipeline(
                program,
                {rank: stages[rank]},
                loss=nn.functional.mse_loss,
                optimizer=partial(torch.optim.SGD, lr=0.1),
                group=mesh["pp"].get_group(),
                **options,
            )
        )
    dist.barrier()
    return str(error.value)


def _unsaved(mesh: DeviceMesh, norm_groups: Any = None) -> str:
    """By a pipeline of one rank, beside others, that is to be saved."""
    program = compile_schedule(schedule("1f1b", 1, MICROBATCHES))
    group = mesh.get_group()
    pipeline = Pipeline(program, [linear()], group=group, norm_groups=norm_groups)
    with pytest.raises(InputError) as error:
        pipeline.state_dict()
    return str(error.value)


def _step(pipeline: Pipeline) -> None:
    x = torch.randn(MICROBATCHES, 4, WIDTH)
    pipeline.step(x, target=x)
