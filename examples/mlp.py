"""A minimal model source: a deep MLP on random data, which can be cut between any two layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

WIDTH, ROWS, LAYERS = 64, 16, 8


class MLP:
    """A model source of residual layers, distributed evenly over the stages, on random data.

    The target is a fixed function of the input.
    """

    def stages(self, count: int) -> Sequence[Callable[[], nn.Module]]:
        """One function per stage that builds the module of that stage; ``count`` is at most
        ``LAYERS``."""
        return [partial(stage, *layers) for layers in pairwise(ends(count))]

    def tied(self, count: int) -> Sequence[Sequence[tuple[int, str]]]:
        return ()  # stages share no parameters

    def names(self, count: int) -> Callable[[int, str], str]:
        """A function that maps a stage and the name of a parameter in it to the parameter's name in
        checkpoints, which does not depend on the cut. ``count``: the number of stages."""
        first = ends(count)

        def name_of(stage: int, name: str) -> str:
            index, _, rest = name.partition(".")
            return f"layers.{first[stage] + int(index)}.{rest}"

        return name_of

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return nn.functional.mse_loss(output, target)

    def batch(self, step: int, microbatches: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        generator = torch.Generator().manual_seed(step)  # the same data on every rank
        inputs = torch.randn(microbatches * ROWS, WIDTH, generator=generator)
        return inputs.chunk(microbatches), inputs.flip(1).chunk(microbatches)

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=1e-3)


def ends(count: int) -> list[int]:
    """For each of ``count`` stages the index of its first layer, and finally the number of
    layers."""
    return sorted({LAYERS * s // count for s in range(count + 1)})


def stage(first: int, end: int) -> nn.Module:
    return nn.Sequential(*map(layer, range(first, end)))


def layer(index: int) -> nn.Module:
    """The layer with this index. Its initial weights depend only on the index, not on the rank."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(index)
        return Layer()


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.down(self.up(x).tanh())
        return out
