"""A module that delays its own weight gradient, like those of TransformerEngine."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tests.support.models import WIDTH, Squares


class Product(torch.autograd.Function):
    """``x @ weight.T``; with a ``store``, its backward puts the weight gradient's inputs there."""

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
    """A linear layer; if ``delayed``, ``backward_dw`` computes the weight gradient.

    Like in TransformerEngine, ``backward_dw`` overwrites the gradient.
    """

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
    """A layer that contains two delayed linears, a norm and a plain linear."""

    def __init__(self, delayed: bool) -> None:
        super().__init__()
        self.first, self.second = DelayedLinear(delayed), DelayedLinear(delayed)
        self.norm, self.linear = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(torch.tanh(self.second(self.first(self.norm(x)))))
        # used a second time, so that its queue has two entries
        return x + self.second(out)

    def backward_dw(self) -> None:
        raise AssertionError("those within are called by themselves")


@dataclass(frozen=True)
class Delayed(Squares):
    """A model source with one such layer per stage."""

    dtype: torch.dtype = torch.float64
    delayed: bool = True
    shape: ClassVar[tuple[int, ...]] = (2, 3, WIDTH)

    def stage(self, number: int) -> nn.Module:
        torch.manual_seed(number)
        return Layer(self.delayed).to(self.dtype)
