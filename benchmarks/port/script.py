"""Trains a small transformer with torch.distributed.pipelining.

``torchrun --nproc-per-node 4 -m benchmarks.port.script Interleaved1F1B`` prints each step's loss.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import get_schedule_class

BLOCKS, WIDTH, HEADS, VOCABULARY, LENGTH = 8, 128, 4, 256, 64
MICROBATCHES, ROWS, STEPS = 8, 4, 20
STAGES_A_RANK = {"Interleaved1F1B": 2, "ZBVZeroBubble": 2}


class Block(nn.Module):
    """Causal attention and a feed-forward layer, both with residuals."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        out: Tensor = x + self.down(nn.functional.gelu(self.up(self.norm2(x))))
        return out


def stages_here(name: str) -> list[PipelineStage]:
    """The stages of this rank: round and round, or down the ranks and back up."""
    rank, ranks, device = dist.get_rank(), dist.get_world_size(), torch.device("cpu")
    count = ranks * STAGES_A_RANK.get(name, 1)
    indices = [s for s in range(count) if s % ranks == rank]
    if name == "ZBVZeroBubble":
        indices = [rank, count - 1 - rank]
    return [PipelineStage(module_of(s, count), s, count, device) for s in indices]


def module_of(stage: int, count: int) -> nn.Module:
    """The module of a stage, with the same weights wherever the model is cut."""
    parts: list[nn.Module] = []
    for number in range(stage * BLOCKS // count, (stage + 1) * BLOCKS // count):
        torch.manual_seed(number)
        parts.append(Block())
    torch.manual_seed(BLOCKS)
    embedding, head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
    first, last = [embedding] * (stage == 0), [head] * (stage == count - 1)
    return nn.Sequential(*first, *parts, *last)


def loss_of(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Tokens that count up, from a random one on; the next ones."""
    random = torch.Generator().manual_seed(step)
    start = torch.randint(VOCABULARY, (MICROBATCHES * ROWS, 1), generator=random)
    tokens = (start + torch.arange(LENGTH + 1)) % VOCABULARY
    return tokens[:, :-1], tokens[:, 1:]


def train(name: str) -> Iterator[float | None]:
    """Each step's loss, where the last stage is."""
    stages = stages_here(name)
    given: Any = stages if len(stages) > 1 else stages[0]
    schedule = get_schedule_class(name)(given, MICROBATCHES, loss_fn=loss_of)
    parameters = [p for stage in stages for p in stage.submod.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    first, last = (any(getattr(s, end) for s in stages) for end in ("is_first", "is_last"))
    for step in range(STEPS):
        inputs, targets = batch(step)
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
