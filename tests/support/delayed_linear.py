"""A module that puts off its weight gradient by itself, as TransformerEngine's do."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tests.support.models import WIDTH


class Product(torch.autograd.Function):
    """``x @ weight.T``; with a ``store`` its backward leaves the weight's gradient to that."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, store: deque[Any] | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.store = store
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        if ctx.store is None:
            return dy @ weight, product(dy, x), None
        ctx.store.append((dy, x))
        return dy @ weight, None, None


def product(dy: Tensor, x: Tensor) -> Tensor:
    return dy.flatten(0, -2).T @ x.flatten(0, -2)


class DelayedLinear(nn.Module):
    """Without ``delayed`` a plain one. ``backward_dw`` overwrites the gradient, as theirs does."""

    def __init__(self, delayed: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 4)
        self.store: deque[Any] = deque()
        self.delayed = delayed

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = Product.apply(x, self.weight, self.store if self.delayed else None)
        return out

    def need_backward_dw(self) -> bool:
        return self.delayed

    def backward_dw(self) -> None:
        self.weight.grad = product(*self.store.popleft())


class Layer(nn.Module):
    """Two of them, which its own ``backward_dw`` would call, a norm and a linear."""

    def __init__(self, delayed: bool) -> None:
        super().__init__()
        self.first, self.second = DelayedLinear(delayed), DelayedLinear(delayed)
        self.norm, self.linear = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(torch.tanh(self.second(self.first(self.norm(x)))))
        # the second one once more: two entries in its queue
        return x + self.second(out)

    def backward_dw(self) -> None:
        raise AssertionError("those within are called by themselves")


@dataclass(frozen=True)
class Delayed:
    """A model source of such layers, one a stage."""

    delayed: bool = True
    dtype: torch.dtype = torch.float64

    def stages(self, count: int) -> Sequence[Callable[[], nn.Module]]:
        return [partial(self._stage, s) for s in range(count)]

    def _stage(self, stage: int) -> nn.Module:
        torch.manual_seed(stage)
        return Layer(self.delayed).to(self.dtype)

    def tied(self, count: int) -> Sequence[Sequence[tuple[int, str]]]:
        return ()

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return (output - target).pow(2).mean()

    def batch(self, step: int, microbatches: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        generator = torch.Generator().manual_seed(step)
        drawn = torch.randn(2, microbatches, 2, 3, WIDTH, generator=generator, dtype=self.dtype)
        return list(drawn[0]), list(drawn[1])

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)
