"""A training script for torchrun that runs a compiled program::

torchrun --nproc-per-node 4 -m examples.train_torchrun program.json
"""

from __future__ import annotations

import sys
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from examples.mlp import MLP
from pipeloom import Pipeline, load_program

STEPS = 5


def main(path: str) -> None:
    dist.init_process_group("gloo")  # on GPUs "nccl", after torch.cuda.set_device
    program = load_program(path)
    data = MLP()
    # functions, so that a stage is built only on the rank that runs it
    stages = data.stages(program.schedule.problem.stages)
    pipeline = Pipeline(
        program, stages, loss=data.loss, optimizer=partial(torch.optim.AdamW, lr=1e-3)
    )
    for step in range(STEPS):
        inputs, targets = data.batch(step, pipeline.microbatches)
        losses: list[Tensor] = []  # one scalar per microbatch on the last stage's rank, else none
        pipeline.step(inputs, target=targets, losses=losses, return_outputs=False)
        if losses:
            print(f"step {step}: loss {torch.stack(losses).mean().item():.6f}", flush=True)
    pipeline.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
