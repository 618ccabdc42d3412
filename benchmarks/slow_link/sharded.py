"""torch's own ``fully_shard`` on the same model, stages and microbatches, its stages paced alike.

Each rank runs microbatches r, P + r, ...; before a stage's forward and before its backward torch
gathers the stage's weights from all ranks, after its backward it reduces and scatters their
gradients. On a CPU torch waits for each of these: nothing overlaps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from examples.gpt import GPT
from pipeloom.runtime.stages.store import made

from .measuring import RankRun, measure


@dataclass(frozen=True)
class TrainSharded:
    """``forward`` and ``backward``: milliseconds that F and BW of each stage take at least."""

    model: GPT
    forward: tuple[float, ...]
    backward: tuple[float, ...]
    microbatches: int
    steps: int

    def run(self) -> RankRun:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        stages = paced(self.model, self.forward, self.backward)
        model = sharded(stages)
        optimizer = self.model.optimizer(model.parameters())
        own = range(rank, self.microbatches, ranks)
        batches = [self.model.batch(i, self.microbatches) for i in range(self.steps)]

        def step(i: int) -> Sequence[float]:
            inputs, targets = batches[i]
            losses = []
            for j in own:
                stages[-1].finish = partial(self.model.loss, target=targets[j])
                loss = model(inputs[j])
                (loss / len(own)).backward()
                losses.append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
            return losses

        return measure(step, self.steps, dist.barrier)


def paced(model: GPT, forward: Sequence[float], backward: Sequence[float]) -> list[Paced]:
    return [
        Paced(made(stage, s), forward[s] / 1e3, backward[s] / 1e3)
        for s, stage in enumerate(model.stages(len(forward)))
    ]


def sharded(stages: Sequence[nn.Module]) -> nn.Module:
    """A module of all stages in a row, each sharded over all ranks."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for stage in stages:
        fully_shard(stage, mesh=mesh)
    whole = nn.Sequential(*stages)
    fully_shard(whole, mesh=mesh)
    return whole


class Paced(nn.Module):
    """A stage whose forward and backward take at least so many seconds, asleep for the rest.

    The backward begins when the gradient of the output is there and ends when that of the input
    is; of the first stage, whose input has none, when that of its first module's output is.
    ``finish``: what else its forward does, the loss of the last stage.
    """

    finish: Callable[[Tensor], Tensor] | None = None

    def __init__(self, stage: nn.Module, forward: float, backward: float) -> None:
        super().__init__()
        self.stage = stage
        self._forward, self._backward = forward, backward
        self._began = 0.0
        next(stage.children()).register_forward_hook(self._mark_first)

    def forward(self, x: Tensor) -> Tensor:
        end = time.perf_counter() + self._forward
        if x.requires_grad:
            x = _mark(x, self._sleep)
        out = self.stage(x)
        out = _mark(out if self.finish is None else self.finish(out), self._begin)
        time.sleep(max(0.0, end - time.perf_counter()))
        return out

    def _mark_first(self, module: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> Tensor:
        return out if inputs[0].requires_grad else _mark(out, self._sleep)

    def _begin(self) -> None:
        self._began = time.perf_counter()

    def _sleep(self) -> None:
        time.sleep(max(0.0, self._began + self._backward - time.perf_counter()))


def _mark(x: Tensor, call: Callable[[], None]) -> Tensor:
    marked: Tensor = _Mark.apply(x, call)  # type: ignore[no-untyped-call]
    return marked


class _Mark(torch.autograd.Function):
    """The identity; ``call`` is made when its gradient passes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, call: Callable[[], None]) -> Tensor:
        ctx.call = call
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.call()
        return gradient, None
