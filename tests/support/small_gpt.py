"""A small GPT whose losses are compared exactly."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from examples.gpt import GPT
from pipeloom import compile_schedule
from pipeloom.ir import Program
from tests.support.schedules import schedule

MICROBATCHES = 4


@dataclass(frozen=True)
class SmallGPT(GPT):
    """Four small blocks in float64, with tied embedding and head, trained by Adam."""

    layers: int = 4
    width: int = 16
    heads: int = 2
    context: int = 8
    microbatch: int = 1
    tie_weights: bool = True
    dtype: torch.dtype = torch.float64

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=self.learning_rate)


def program_of(family: str, ranks: int, *, data_parallel: bool = False) -> Program:
    """The program of a family for this model."""
    plan = schedule(family, ranks, MICROBATCHES)
    tied = [sorted({s for s, _ in group}) for group in SmallGPT().tied(plan.problem.stages)]
    return compile_schedule(plan, tied=tied, data_parallel=data_parallel)
