"""One rank of a training run with faults: its training and its output."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pipeloom import StepRecord, run
from pipeloom.ir import Program
from tests.support.models import Squares

WIDTH, ROWS = 16, 2
PATIENCE = 4.0  # timeout of a message, in seconds


@dataclass(frozen=True)
class Source(Squares):
    """Random data to memorize; that of step ``poisoned`` is NaN. Batches take some time, so that
    faults fall within steps."""

    poisoned: int | None = None
    shape: ClassVar[tuple[int, ...]] = (ROWS, WIDTH)

    def stage(self, number: int) -> nn.Module:
        torch.manual_seed(number)
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh())

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=1e-3)

    def names(self, count: int) -> Callable[[int, str], str]:
        return lambda stage, name: f"{stage}.{name}"

    def batch(self, step: int, microbatches: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        time.sleep(0.02)
        inputs, targets = super().batch(step, microbatches)
        if step == self.poisoned:
            inputs[0][0, 0] = torch.nan
        return inputs, targets


def train(
    program: Program,
    source: Source,
    folder: Path,
    settings: Mapping[str, Any],
    *,
    port: int,
    rank: int,
) -> None:
    """Train like a process of torchrun; writes one line per step, and one per failure, to a file in
    ``folder``."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    torch.set_num_threads(1)
    ranks = program.schedule.problem.ranks
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    limits: dict[str, Any] = {"timeout": PATIENCE, "clip_grad_norm": 1.0}
    with (folder / f"rank{rank}").open("w", buffering=1) as file:

        def told(record: StepRecord) -> None:
            file.write(f"step {record.step} {record.loss!r}\n")

        try:
            run(program, source, callbacks=[told], **limits, **settings)
            file.write("done\n")
        except BaseException as error:
            file.write(f"pipeloom: {' '.join(str(error).split())}\n")
            file.flush()
            os._exit(1)
