"""Sizes of the measurements: the model, how it is cut, and how often it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import nn

from examples.gpt import GPT

T = TypeVar("T", bound=nn.Module)


@dataclass(frozen=True)
class Source(GPT):
    """The GPT of the examples, made on its device (a CPU draws its weights for many seconds)."""

    home: str = "cpu"

    def _unit(self, place: int, build: Callable[[], T]) -> T:
        with torch.device(self.home):
            return super()._unit(place, build)

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, lr=1e-4, betas=(0.9, 0.95))


@dataclass(frozen=True, slots=True)
class Size:
    """``ranks``: how many ranks, with the microbatches of each; ``steps``: measured ones,
    after ``warmup``; ``rounds``: of a profile; ``plan``: seconds of one plan; ``widths``, ``rows``:
    of the blocks whose B and W are compared with BW."""

    model: Source
    ranks: dict[int, int]
    warmup: int
    steps: int
    rounds: int
    plan: float
    widths: tuple[int, ...]
    rows: int


FULL = Size(
    model=Source(layers=16, width=2048, heads=16, context=1024, microbatch=4),
    ranks={2: 8, 4: 12, 8: 16},
    warmup=3,
    steps=5,
    rounds=6,
    plan=8.0,
    widths=(1024, 2048, 4096),
    rows=8192,
)
SMALL = Size(
    model=Source(layers=4, width=32, heads=2, context=16),
    ranks={2: 4},
    warmup=1,
    steps=2,
    rounds=1,
    plan=0.5,
    widths=(32,),
    rows=64,
)
