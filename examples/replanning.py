"""A training script that measures its own stages and plans again between steps, for torchrun::

torchrun --nproc-per-node 2 -m examples.replanning

The first plan assumes that all stages take the same time. Every few steps, the stages are measured
in place, rank 0 plans with the new profile, and all ranks continue with the new program and the
same weights and optimizer states.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import pipeloom
from examples.mlp import MLP, WIDTH
from pipeloom import Pipeline, Profile, StageProfile
from pipeloom.ir import Program

STEPS, EVERY, MICROBATCHES = 6, 3, 8


def stage(index: int, count: int) -> torch.nn.Module:
    """The module of a stage; the last stage has four times as many layers as the others."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(index)
        layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(16 if index == count - 1 else 4)]
    return torch.nn.Sequential(*layers)


def replanned(profile: Profile) -> Program:
    """The program of the best schedule for ``profile``. Rank 0 finds it and sends it to all
    ranks."""
    found: list[Any] = [None]
    if dist.get_rank() == 0:
        answer = pipeloom.optimize(profile, MICROBATCHES, objective="makespan", time_limit=2)
        print(f"planned {answer.cost:.2f} ms ({answer.status})", flush=True)
        found = [pipeloom.compile(answer.schedule)]
    dist.broadcast_object_list(found, src=0)
    program: Program = found[0]
    return program


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ranks, data = dist.get_world_size(), MLP()
    guess = Profile((StageProfile(1.0, 1.0, 1.0),) * ranks, ranks)
    program = pipeloom.compile(pipeloom.build("1f1b", guess, MICROBATCHES))
    pipeline = Pipeline(
        program,
        [partial(stage, s, ranks) for s in range(ranks)],
        loss=data.loss,
        optimizer=partial(torch.optim.AdamW, lr=1e-3),
    )
    for step in range(STEPS):
        inputs, target = data.batch(step, MICROBATCHES)
        if step and step % EVERY == 0:
            program = replanned(pipeline.profile(inputs, target=target, repeats=5).profile)
        losses: list[Tensor] = []
        pipeline.step(inputs, target=target, losses=losses, program=program)
        took = pipeline.gather_trace().known_timing.makespan
        if losses:
            loss = torch.stack(losses).mean().item()
            print(f"step {step}: loss {loss:.6f}, measured {took:.2f} ms", flush=True)
    pipeline.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
