"""Sleeping stages for runtimes that trace them: F, B and W are custom ops, which tracing keeps."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn

from ..clocks import sleep_until
from .sleeping import WIDTH, input_gradient

_make: Any = torch.library.Library
_library = _make("pipeloom_benchmarks", "DEF")
_ops: Any = torch.ops.pipeloom_benchmarks


def added(x: Tensor, weight: Tensor, seconds: float) -> Tensor:
    end = time.perf_counter() + seconds
    out = x + weight
    sleep_until(end)
    return out


def weight_gradient(dy: Tensor, seconds: float) -> Tensor:
    end = time.perf_counter() + seconds
    gradient = dy.sum(0)
    sleep_until(end)
    return gradient


def _define(name: str, arguments: str, function: Any, shape: Any) -> None:
    """Define a custom op for CPU tensors.

    ``arguments``: the tensor arguments in torch's schema language; the argument ``seconds`` follows
    them. ``function``: computes the op. ``shape``: returns only an empty result, for tracing.
    """
    _library.define(f"{name}({arguments}, float seconds) -> Tensor")
    _library.impl(name, function, "CPU")
    torch.library.register_fake(f"pipeloom_benchmarks::{name}", shape, lib=_library)


_define("added", "Tensor x, Tensor weight", added, lambda x, weight, seconds: x.new_empty(x.shape))
_define("input_gradient", "Tensor dy", input_gradient, lambda dy, seconds: dy.new_empty(dy.shape))
_define(
    "weight_gradient", "Tensor dx", weight_gradient, lambda dx, seconds: dx.new_empty(dx.shape[1:])
)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, float], output: Tensor) -> None:
    ctx.seconds = inputs[-1]


def _differentiate(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:
    dx = _ops.input_gradient(dy, ctx.seconds)
    return dx, _ops.weight_gradient(dx, ctx.seconds), None


torch.library.register_autograd(
    "pipeloom_benchmarks::added", _differentiate, setup_context=_keep, lib=_library
)


class TracedStage(nn.Module):
    """A stage in which each of F, B and W takes ``seconds``.

    In the ``first`` stage, whose input needs no gradient, a bias is added before the op. So its B
    is the computation that the gradients of both parameters share.
    """

    def __init__(self, seconds: float, *, first: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(WIDTH))
        self.bias = nn.Parameter(torch.zeros(WIDTH)) if first else None
        self.seconds = seconds

    def forward(self, x: Tensor) -> Tensor:
        if self.bias is not None:
            x = x + self.bias
        out: Tensor = _ops.added(x, self.weight, self.seconds)
        return out
