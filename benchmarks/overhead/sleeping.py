"""Stages that sleep instead of computing, with the same times for both runtimes.

F, B and W compute very little, and then sleep until a deadline that counts from their start, as if
they ran on a device of that speed. So all costs of the runtime, its messages and late wake-ups add
to the step. W is written for each runtime as its documentation recommends: for ours as a deferred
matrix product, for torch as a ``dw_builder``, which saves torch a traversal of the autograd graph.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function

from pipeloom.runtime import Rule, defer

from ..clocks import sleep_until

ROWS, WIDTH = 4, 16


def input_gradient(dy: Tensor, seconds: float) -> Tensor:
    """B: return the gradient of the input when ``seconds`` are over, as a new tensor, like the
    result of a matrix product."""
    end = time.perf_counter() + seconds
    dx = dy.clone(memory_format=torch.contiguous_format)
    sleep_until(end)
    return dx


class _Input(torch.autograd.Function):
    """``x + weight``. Its backward is a B that sleeps; the weight gets no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        return x + weight

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor | None, None]:
        return input_gradient(dy, ctx.seconds), None, None


class _Both(_Input):
    """``x + weight``. Its backward is a BW that takes twice as long as a B."""

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor | None, None]:
        end = time.perf_counter() + 2 * ctx.seconds
        gradient = dy.sum(0)
        return input_gradient(dy, end - time.perf_counter()), gradient, None


_input: Callable[..., Tensor] = _Input.apply
_both: Callable[..., Tensor] = _Both.apply


def added(x: Tensor, weight: Tensor, seconds: float) -> Tensor:
    """``x + weight``, for which each of B and W takes ``seconds``."""
    if has_torch_function((x, weight)):
        out: Tensor = handle_torch_function(added, (x, weight), x, weight, seconds)
        return out
    return _both(x, weight, seconds)


@dataclass(frozen=True, slots=True, eq=False)
class _Added(Rule):
    """The rule by which ``pipeloom.runtime`` defers W of :func:`added`."""

    seconds: float = field(kw_only=True)
    autocast = False

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return x + weight

    def input_grad(self, dy: Tensor, x: Tensor, weight: Tensor) -> Tensor:
        return input_gradient(dy, self.seconds)

    def accumulate(self, x: Tensor, dy: Tensor) -> None:
        weigh(self.weight, dy, self.seconds)


defer(added, lambda x, weight, seconds: (_Added(weight, seconds=seconds), x))


def weigh(weight: Tensor, dy: Tensor, seconds: float) -> None:
    """W: add the gradient of the weight to ``weight.grad``, in ``seconds``."""
    end = time.perf_counter() + seconds
    if weight.grad is None:
        weight.grad = dy.sum(0)
    else:
        weight.grad += dy.sum(0)
    sleep_until(end)


class OurStage(nn.Module):
    """A stage in which each of F, B and W takes ``seconds``, and a BW twice as long."""

    product: Callable[[Tensor, Tensor, float], Tensor] = staticmethod(added)

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(WIDTH))
        self.seconds = seconds

    def forward(self, x: Tensor) -> Tensor:
        end = time.perf_counter() + self.seconds
        out = self.product(x, self.weight, self.seconds)
        sleep_until(end)
        return out


class TorchStage(OurStage):
    """:class:`OurStage` for torch's runtime, which gets W from :meth:`dw_builder`."""

    product = staticmethod(_input)

    def dw_builder(self) -> Callable[[], None]:
        return partial(weigh, self.weight, torch.ones(ROWS, WIDTH), self.seconds)


def loss(output: Tensor, target: Tensor) -> Tensor:
    """A loss with as little computation as possible; it ignores ``target``."""
    return output.sum()
