"""One rank of a training run that is disturbed: what it trains, and what it writes of it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pipeloom import StepRecord, run
from pipeloom.ir import Program
from pipeloom.ir.errors import in_words, printable

WIDTH, ROWS = 16, 2
PATIENCE = 4.0  # seconds that a message may take


class Stage(nn.Module):
    """A linear layer that takes a few milliseconds, so that faults fall within steps."""

    def __init__(self, stage: int) -> None:
        super().__init__()
        torch.manual_seed(stage)
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x))


@dataclass(frozen=True)
class Source:
    """Random numbers to learn by heart; those of step ``poisoned`` are NaN."""

    poisoned: int | None = None

    def stages(self, count: int) -> Sequence[Callable[[], nn.Module]]:
        return [partial(Stage, stage) for stage in range(count)]

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return (output - target).pow(2).mean()

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=1e-3)

    def tied(self, count: int) -> Sequence[Any]:
        return ()

    def names(self, count: int) -> Callable[[int, str], str]:
        return lambda stage, name: f"{stage}.{name}"

    def batch(self, step: int, microbatches: int) -> tuple[list[Tensor], list[Tensor]]:
        time.sleep(0.02)
        draw = torch.Generator().manual_seed(step)
        shape = (microbatches, ROWS, WIDTH)
        inputs, targets = (torch.randn(shape, generator=draw) for _ in range(2))
        if step == self.poisoned:
            inputs[0, 0, 0] = torch.nan
        return list(inputs), list(targets)


@dataclass(frozen=True)
class Attempt:
    """The order to the ranks of one start; each writes into ``folder``."""

    program: Program
    folder: Path
    port: int
    settings: dict[str, Any] = field(default_factory=dict)
    poisoned: int | None = None


def train(attempt: Attempt, rank: int) -> None:
    """Trains as one of torchrun's processes would: a line a step, and one of what went wrong."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    torch.set_num_threads(1)
    ranks = attempt.program.schedule.problem.ranks
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(attempt.port),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    with (attempt.folder / f"rank{rank}").open("w", buffering=1) as file:

        def told(record: StepRecord) -> None:
            file.write(f"step {record.step} {record.loss!r}\n")

        try:
            run(
                attempt.program,
                Source(attempt.poisoned),
                callbacks=[told],
                message_timeout=PATIENCE,
                clip_grad_norm=1.0,
                **attempt.settings,
            )
            file.write("done\n")
        except BaseException as error:
            file.write(f"pipeloom: {printable(in_words(error))}\n")
            file.flush()
            os._exit(1)
