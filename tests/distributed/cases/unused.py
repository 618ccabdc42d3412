"""What the tests of parameters without a gradient run on every rank, and in one process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeloom.compiler import compile_schedule
from pipeloom.ir.model.program import Program
from pipeloom.runtime.pipeline.pipeline import Pipeline
from tests.distributed.cases.failures import alone
from tests.support.models import gradient

MICROBATCHES, ROWS, STEPS, STAGES = 4, 2, 2, 2
Steps = list[dict[str, Tensor | None]]
"""After each step every parameter's gradient by its stage and name, and in the end the
parameters."""
adamw = partial(torch.optim.AdamW, lr=0.1, weight_decay=0.5)


class Choosy(nn.Module):
    """Uses ``even`` or ``odd`` as the sign of its input's first number says, and ``idle`` never."""

    def __init__(self, stage: int) -> None:
        super().__init__()
        torch.manual_seed(stage)
        self.idle, self.even, self.odd = (nn.Parameter(torch.randn(3)) for _ in range(3))
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        factor = self.even if x.flatten()[0] >= 0 else self.odd
        sign = torch.sign(x.detach()[:, :1])
        out: Tensor = self.linear(x * factor).exp() * sign
        return out


def batch(step: int) -> Tensor:
    """In the second step microbatches 1 and 3 are odd; rank 1 of two has these where weights
    travel."""
    x = torch.rand(MICROBATCHES, ROWS, 3, generator=torch.Generator().manual_seed(step)) + 0.1
    if step:
        x[1::2] *= -1.0
    return x.flatten(end_dim=1)


def size(output: Tensor, _: Tensor) -> Tensor:
    return output.abs().mean()


def train(dtypes: Sequence[torch.dtype | None], programs: Sequence[Program]) -> list[list[Steps]]:
    """On a rank: what it owns, by program and dtype of D's."""
    return [[_train(program, dtype) for program in programs] for dtype in dtypes]


def _train(program: Program, reduce_dtype: torch.dtype | None) -> Steps:
    stages = [partial(Choosy, stage) for stage in range(STAGES)]
    pipeline = Pipeline(program, stages, loss=size, optimizer=adamw, reduce_dtype=reduce_dtype)
    found: Steps = []
    for step in range(STEPS):
        pipeline.step(batch(step), target=torch.zeros(MICROBATCHES * ROWS))
        found.append(_tensors(pipeline.modules, gradient))
    pipeline.close()
    return [*found, _tensors(pipeline.modules, Tensor.detach)]


def train_replicas() -> Steps:
    """On a rank, which is a replica of the whole pipeline: each trains every second microbatch."""
    rank = dist.get_rank()
    groups = [dist.new_group([each]) for each in range(2)]
    pipeline = Pipeline(
        compile_schedule(alone(MICROBATCHES // 2).schedule, data_parallel=True),
        [Choosy(stage) for stage in range(STAGES)],
        loss=size,
        optimizer=adamw,
        group=groups[rank],
        data_group=dist.group.WORLD,
        timeout=60.0,
    )
    found: Steps = []
    for step in range(STEPS):
        mine = torch.cat(batch(step).split(ROWS)[rank::2])
        pipeline.step(mine, target=torch.zeros(len(mine)))
        found.append(_tensors(pipeline.modules, gradient))
    pipeline.close()
    return [*found, _tensors(pipeline.modules, Tensor.detach)]


def one_process() -> Steps:
    modules = {stage: Choosy(stage) for stage in range(STAGES)}
    optimizer = adamw(p for module in modules.values() for p in module.parameters())
    found: Steps = []
    for step in range(STEPS):
        optimizer.zero_grad()
        for x in batch(step).split(ROWS):
            (size(modules[1](modules[0](x)), x) / MICROBATCHES).backward()
        found.append(_tensors(modules, gradient))
        optimizer.step()
    return [*found, _tensors(modules, Tensor.detach)]


def _tensors(
    modules: Mapping[int, nn.Module], read: Callable[[Tensor], Tensor | None]
) -> dict[str, Tensor | None]:
    found = (
        (f"{stage}.{name}", read(parameter))
        for stage, module in modules.items()
        for name, parameter in module.named_parameters()
    )
    return {name: None if value is None else value.clone() for name, value in found}
