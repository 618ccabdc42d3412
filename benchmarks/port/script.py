"""Trains a small transformer with torch.distributed.pipelining.

``torchrun --nproc-per-node 4 -m benchmarks.port.script Interleaved1F1B`` prints each step's loss.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class

from examples.gpt import GPT

MODEL = GPT(layers=8, width=128, heads=4, context=64, microbatch=4)
MICROBATCHES, STEPS = 8, 20
STAGES_A_RANK = {"Interleaved1F1B": 2, "ZBVZeroBubble": 2}


def stages_here(name: str) -> list[PipelineStage]:
    """The stages of this rank: interleaved, or for ZBVZeroBubble in V shape."""
    rank, ranks, device = dist.get_rank(), dist.get_world_size(), torch.device("cpu")
    count = ranks * STAGES_A_RANK.get(name, 1)
    indices = [s for s in range(count) if s % ranks == rank]
    if name == "ZBVZeroBubble":
        indices = [rank, count - 1 - rank]
    return [PipelineStage(MODEL.stages(count)[s](), s, count, device) for s in indices]


def train(name: str) -> Iterator[float | None]:
    """Yield the loss of each step on the rank of the last stage, and None on the others."""
    stages = stages_here(name)
    given: Any = stages if len(stages) > 1 else stages[0]
    schedule = get_schedule_class(name)(given, MICROBATCHES, loss_fn=MODEL.loss)
    optimizer = MODEL.optimizer(p for stage in stages for p in stage.submod.parameters())
    first, last = (any(getattr(s, end) for s in stages) for end in ("is_first", "is_last"))
    for step in range(STEPS):
        inputs, targets = (torch.cat(list(part)) for part in MODEL.batch(step, MICROBATCHES))
        losses: list[Tensor] = []
        optimizer.zero_grad()
        schedule.step(*[inputs] * first, target=targets if last else None, losses=losses)
        optimizer.step()
        yield torch.stack(losses).mean().item() if last else None


def main() -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    for loss in train(sys.argv[1]):
        if loss is not None:
            print(f"loss {loss:.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
