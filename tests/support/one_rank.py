"""Pipelines of one rank, which need no other processes, and the same stages with plain autograd."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from pipeloom.compiler import compile_schedule
from pipeloom.ir import Link, Profile, Program, StageProfile
from pipeloom.runtime import Cell, Pipeline, StageRunner
from tests.support.by_hand import by_hand

SPLIT = "0F{0} 1F{0} 1B{0} 0B{0} 1W{0} 0W{0}"
FUSED = "0F{0} 1F{0} 1BW{0} 0BW{0}"
PLAIN = "0F0 1F0 0F1 1F1 1B0 1W0 0B0 0W0 1B1 1W1 0B1 0W1"
RECOMPUTED = "0F0 1F0 0F1 1F1 1R0 1B0 1W0 0R0 0B0 0W0 1R1 1B1 1W1 0R1 0B1 0W1"
OFFLOADED = "0F0 1F0 0O0 1O0 0F1 1F1 1O1 1L0 1B0 1W0 0L0 0B0 0W0 1L1 1B1 1W1 0B1 0W1"
MIXED = "0F0 1F0 0O0 0F1 1F1 1R0 1B0 1W0 0L0 0B0 0W0 1B1 1W1 0R1 0B1 0W1"


def each(order: str, count: int) -> str:
    """An order that finishes each microbatch before the next one."""
    return " ".join(order.format(j) for j in range(count))


def late(count: int) -> str:
    """All F's of two stages, then all B's, then all W's, so that weight gradients wait longest."""
    kinds = ("0F{0} 1F{0}", "1B{0} 0B{0}", "1W{0} 0W{0}")
    return " ".join(each(kind, count) for kind in kinds)


def program(
    order: str, tied: Sequence[tuple[int, int]] = (), profile: Profile | None = None
) -> Program:
    """The program of an order on one rank; stages can be recomputed and offloaded."""
    stages = 1 + max(int(word[0]) for word in order.split())
    stage = StageProfile(1.0, 1.0, 1.0, t_r=1.0, m_r=0.5, m_o=0.5)
    profile = profile or Profile((stage,) * stages, 1, host_link=Link(0.0, 1.0))
    return compile_schedule(by_hand(order, profile=profile), tied=tied)


def square(output: Any, _: Any = None) -> Tensor:
    """A loss that needs no target."""
    found: Tensor = output.square().mean()
    return found


class Shift(nn.Module):
    """A first stage whose parameter has the same gradient as the next stage's input."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(*shape, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.shift


class Of(nn.Module):
    """A module that applies ``function`` to itself and its inputs.

    ``parts`` are modules, buffers, parameters or shapes of parameters.
    """

    def __init__(
        self, function: Callable[..., Any], **parts: nn.Module | Tensor | tuple[int, ...]
    ) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                made = nn.Parameter(torch.randn(part)) if isinstance(part, tuple) else part
                setattr(self, name, made)

    def forward(self, *inputs: Any, **options: Any) -> Any:
        return self.function(self, *inputs, **options)


@dataclass(frozen=True)
class Ran:
    """The result of steps; ``values``: the last losses, all gradients and buffers, by name."""

    values: dict[str, Tensor]
    pipeline: Pipeline


def ran(
    order: str,
    modules: Sequence[nn.Module],
    xs: Sequence[Tensor],
    *,
    targets: Sequence[Tensor] | None = None,
    steps: int = 1,
    loss: Callable[..., Any] = square,
    **options: Any,
) -> Ran:
    """Run steps of a pipeline with a fixed random seed; gradients accumulate."""
    pipeline = Pipeline(program(order), modules, loss=loss, **options)
    losses: list[Tensor] = []
    torch.manual_seed(3)
    for _ in range(steps):
        given = list(targets) if targets is not None else list(xs)
        pipeline.step(list(xs), target=given, losses=losses)
    return Ran(_values(modules, losses), pipeline)


@contextmanager
def watching_b(stage: int) -> Iterator[set[str]]:
    """In pipelines made in it, the parameters that have a gradient before the stage's first W."""
    found, first = set[str](), list[int]()
    run_as = StageRunner._run_as

    def watched(runner: StageRunner, forward: Any, backward: Any, weight: Any, **more: Any) -> None:
        def noted(cell: Cell) -> None:
            if runner.stage == stage and not first:
                named = runner.module.named_parameters()
                found.update(name for name, p in named if p.grad is not None)
                first.append(stage)
            weight(cell)

        run_as(runner, forward, backward, noted, **more)

    with patch.object(StageRunner, "_run_as", watched):
        yield found


def by_autograd(
    modules: Sequence[nn.Module],
    xs: Sequence[Tensor],
    *,
    targets: Sequence[Tensor] | None = None,
    steps: int = 1,
    loss: Callable[..., Any] = square,
) -> dict[str, Tensor]:
    """The values of the same steps without a pipeline."""
    losses: list[Tensor] = []
    for _ in range(steps):
        losses.clear()
        for x, y in zip(xs, targets if targets is not None else xs, strict=True):
            out: Any = x
            for module in modules:
                out = module(out)
            losses.append(loss(out, y))
            (losses[-1] / len(xs)).backward()
    return _values(modules, losses)


def _values(modules: Sequence[nn.Module], losses: Sequence[Tensor]) -> dict[str, Tensor]:
    found = {f"loss {j}": loss.detach() for j, loss in enumerate(losses)}
    for s, module in enumerate(modules):
        for name, p in module.named_parameters():
            if p.grad is not None:
                found[f"{s}.{name}"] = p.grad
        found |= {f"buffer {s}.{name}": b for name, b in module.named_buffers()}
    return found


def differing(
    found: dict[str, Tensor], wanted: dict[str, Tensor], relative: float = 0.0
) -> list[str]:
    """The names of values that differ by more than ``relative`` of their largest element.

    With 0, they must be bitwise equal.
    """
    assert found.keys() == wanted.keys()
    bounds = {name: relative * x.double().abs().max() for name, x in wanted.items() if x.numel()}
    return [
        name
        for name, bound in bounds.items()
        if found[name].dtype is not wanted[name].dtype
        or not (found[name].double() - wanted[name].double()).abs().max() <= bound
    ]
