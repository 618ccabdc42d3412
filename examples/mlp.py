"""The least model source: a deep MLP on made-up data, cut into stages of one kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

WIDTH, ROWS = 64, 16


class MLP:
    """Residual layers, the same number in each stage; the target is a fixed map of the input."""

    def stages(self, count: int) -> Sequence[Callable[[], nn.Module]]:
        return [partial(stage, s) for s in range(count)]

    def tied(self, count: int) -> Sequence[Sequence[tuple[int, str]]]:
        return ()  # no parameter is in two stages

    def names(self, count: int) -> Callable[[int, str], str]:
        return lambda stage, name: f"{stage}.{name}"  # what checkpoints call parameters

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return nn.functional.mse_loss(output, target)

    def batch(self, step: int, microbatches: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        generator = torch.Generator().manual_seed(step)  # every rank draws the same
        inputs = torch.randn(microbatches * ROWS, WIDTH, generator=generator)
        return inputs.chunk(microbatches), inputs.flip(1).chunk(microbatches)

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=1e-3)


def stage(index: int) -> nn.Module:
    """Made on any rank, its weights are the same: they depend on the stage alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(index)
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
