"""Trains with the conventions of torchtitan: a schedule as CSV, and module names for each part::

    torchrun --nproc-per-node 2 -m examples.train_torchtitan schedule.csv parts.json

``schedule.csv`` is the file for ``pipeline_parallel_schedule_csv``; ``parts.json`` contains
``module_fqns_per_model_part``, a list of module names for each stage.
``pipeloom export --to torch-csv`` and ``--to torchtitan`` write them. As in torchtitan, every rank
creates the whole model (there without memory, on the meta device), and a stage is a copy without
the other stages' modules.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeloom import Pipeline, Profile, StageProfile, compile_schedule
from pipeloom.compiler.exporters import EXPORTERS
from pipeloom.ir.model.program import Program

STEPS, WIDTH, LAYERS, VOCABULARY, ROWS = 5, 32, 4, 64, 2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, h: Tensor) -> Tensor:
        out: Tensor = h + self.down(nn.functional.silu(self.up(self.norm(h))))
        return out


class Decoder(nn.Module):
    """A decoder with the module names of torchtitan. Modules of other stages are None and are
    skipped."""

    def __init__(self) -> None:
        super().__init__()
        self.tok_embeddings = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleDict({str(i): Block() for i in range(LAYERS)})
        self.norm = nn.RMSNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, h: Tensor) -> Tensor:
        for module in (self.tok_embeddings, *self.layers.values(), self.norm, self.lm_head):
            h = h if module is None else module(h)
        return h


def whole() -> Decoder:
    torch.manual_seed(0)
    return Decoder()


def part(names: Sequence[str]) -> nn.Module:
    """A copy of the whole model that contains only the modules with the given names."""
    model = deepcopy(whole())
    for name, child in list(model.named_children()):
        if isinstance(child, nn.ModuleDict):
            for key in set(child) - {
                n.partition(".")[2] for n in names if n.startswith(f"{name}.")
            }:
                del child[key]
        elif name not in names:
            setattr(model, name, None)
    return model


def read_program(csv: str, stages: int) -> Program:
    """Compile the schedule in a CSV. As it contains no times, all ops of all stages are assumed to
    take the same time."""
    text = Path(csv).read_text(encoding="utf-8")
    profile = Profile((StageProfile(1.0, 1.0, 1.0),) * stages, ranks=len(text.split()))
    read = EXPORTERS["torch-csv"].read
    assert read is not None
    return compile_schedule(read(text, profile, csv))


def batch(step: int, microbatches: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(0, VOCABULARY, (microbatches * ROWS, 9), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def loss(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


def train(csv: str, parts: str) -> list[float]:
    """Train for ``STEPS`` steps. Returns their losses on the rank of the last stage, and an empty
    list on other ranks."""
    names: list[list[str]] = json.loads(Path(parts).read_text(encoding="utf-8"))
    pipeline = Pipeline(
        read_program(csv, len(names)),
        [partial(part, own) for own in names],
        loss=loss,
        optimizer=partial(torch.optim.AdamW, lr=1e-2),
    )
    history = []
    for step in range(STEPS):
        inputs, target = batch(step, pipeline.microbatches)
        losses: list[Tensor] = []
        pipeline.step(inputs, target=target, losses=losses, return_outputs=False)
        if losses:
            history.append(torch.stack(losses).mean().item())
            print(f"step {step}: loss {history[-1]:.6f}", flush=True)
    pipeline.close()
    return history


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train(sys.argv[1], sys.argv[2])
    dist.destroy_process_group()
