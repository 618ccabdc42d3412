"""A mesh of 2 pipeline ranks x 2 replicas x 2 tensor parallel processes, for torchrun::

    torchrun --nproc-per-node 8 -m examples.train_mesh program.json

The program has 2 ranks and is compiled with ``--data-parallel``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from examples.mlp import MLP
from pipeloom import Pipeline, load_program

STEPS = 5


def parallel_stage(stage: Callable[[], nn.Module], tp: DeviceMesh) -> nn.Module:
    """Build a stage and shard its layers over the processes of ``tp`` along their hidden units."""
    plan = {"*.up": ColwiseParallel(), "*.down": RowwiseParallel()}
    return parallelize_module(stage(), tp, plan)


def main(path: str) -> None:
    dist.init_process_group("gloo")  # on GPUs "nccl", and a mesh on "cuda"
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
    program = load_program(path)
    data, replica = MLP(), mesh.get_local_rank("dp")
    stages = data.stages(program.schedule.problem.stages)
    pipeline = Pipeline(
        program,
        [partial(parallel_stage, stage, mesh["tp"]) for stage in stages],
        loss=data.loss,
        optimizer=partial(torch.optim.AdamW, lr=1e-3),
        clip_grad_norm=10.0,
        group=mesh["pp"].get_group(),
        data_group=mesh["dp"].get_group(),
    )
    count = pipeline.microbatches
    for step in range(STEPS):
        inputs, targets = data.batch(step, 2 * count)  # for both replicas
        mine = slice(replica * count, (replica + 1) * count)
        losses: list[Tensor] = []  # filled on the processes of the last stage
        pipeline.step(inputs[mine], target=targets[mine], losses=losses, return_outputs=False)
        if losses and mesh.get_local_rank("tp") == 0:
            loss = torch.stack(losses).mean().item()
            print(f"step {step}: replica {replica}: loss {loss:.6f}", flush=True)
    pipeline.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
