"""What the tests of mixed precision, clipping and steps without a barrier run on every rank."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeloom.ir.model.program import Program
from pipeloom.runtime.pipeline.pipeline import Pipeline
from tests.support.models import TinyTransformer, gradient, named, whole

STEPS, MICROBATCHES = 3, 4


@dataclass(frozen=True)
class Options:
    """The name of a plan, and how it is run."""

    plan: str
    param: torch.dtype | None = None
    reduce: torch.dtype | None = None
    clip: float | None = None

    def __str__(self) -> str:
        dtypes = [str(d).removeprefix("torch.") for d in (self.param, self.reduce) if d]
        clip = [] if self.clip is None else [f"clip {self.clip}"]
        return "-".join([self.plan, *dtypes, *clip])


@dataclass(frozen=True)
class Result:
    """The first step's gradients (after clipping), the parameters after the last; every norm."""

    gradients: dict[str, Tensor]
    parameters: dict[str, Tensor]
    norms: list[float | None]


SOURCE = TinyTransformer(torch.float32, uneven=True)


def run_options(chosen: Sequence[tuple[Options, Program]]) -> list[Result]:
    return [_run(options, program) for options, program in chosen]


def _run(options: Options, program: Program) -> Result:
    pipeline = Pipeline.from_source(
        program,
        SOURCE,
        param_dtype=options.param,
        reduce_dtype=options.reduce,
        clip_grad_norm=options.clip,
    )
    modules = pipeline.modules
    gradients: dict[str, Tensor] = {}
    norms = []
    for step in range(STEPS):
        inputs, targets = SOURCE.batch(step, MICROBATCHES)
        pipeline.step(inputs, target=targets)
        gradients = gradients or copied(modules, gradient)
        norms.append(pipeline.grad_norm)
    pipeline.close()
    return Result(gradients, copied(modules, Tensor.detach), norms)


def copied(
    modules: dict[int, nn.Module], read: Callable[[Tensor], Tensor | None]
) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in named(modules, read).items()}


def one_process(options: Options, stages: int) -> Result:
    """The same steps with plain autograd: master parameters, each stage cast in every step."""
    masters: dict[int, nn.Module] = dict(enumerate(whole(SOURCE, stages)))
    distinct = {id(p): p for m in masters.values() for p in m.parameters()}
    optimizer = SOURCE.optimizer(distinct.values())
    gradients: dict[str, Tensor] = {}
    norms: list[float | None] = []
    for step in range(STEPS):
        optimizer.zero_grad()
        _accumulate(masters, options.param or torch.float32, step)
        if options.clip is not None:
            norms.append(nn.utils.clip_grad_norm_(distinct.values(), options.clip).item())
        gradients = gradients or copied(masters, gradient)
        optimizer.step()
    return Result(gradients, copied(masters, Tensor.detach), norms)


def _accumulate(masters: dict[int, nn.Module], dtype: torch.dtype, step: int) -> None:
    """Adds each microbatch's gradients, computed in ``dtype``, to the masters'."""
    computed = {s: deepcopy(module).to(dtype) for s, module in masters.items()}
    for x, y in zip(*SOURCE.batch(step, MICROBATCHES), strict=True):
        out = x
        for module in computed.values():
            module.zero_grad()
            out = module(out)
        (SOURCE.loss(out.float(), y) / MICROBATCHES).backward()
        for s, module in computed.items():
            for name, parameter in module.named_parameters():
                assert parameter.grad is not None
                master, new = masters[s].get_parameter(name), parameter.grad.float()
                master.grad = new if master.grad is None else master.grad + new


class Waiting(torch.optim.SGD):
    """In its first step it waits until ``path`` exists."""

    def __init__(self, parameters: Any, path: str) -> None:
        super().__init__(parameters, lr=0.1)
        self._path: Path | None = Path(path)

    def step(self, closure: Any = None) -> Any:
        end = time.monotonic() + 60
        while self._path is not None and not self._path.exists():
            if time.monotonic() > end:
                raise TimeoutError("no other rank went on to the next step")
            time.sleep(0.01)
        self._path = None
        return super().step(closure)


def run_ahead(program: Program, path: str) -> list[float]:
    """Rank 1's first optimizer step waits until rank 0 has run an op of the next iteration."""
    rank = dist.get_rank()
    make = (lambda p: Waiting(p, path)) if rank == 1 else (lambda p: torch.optim.SGD(p, lr=0.1))
    stages = SOURCE.stages(program.schedule.problem.stages)
    pipeline = Pipeline(program, stages, loss=SOURCE.loss, optimizer=make, tied=[])
    losses: list[Tensor] = []
    for step in range(2):
        if step == 1 and rank == 0:
            pipeline.store.module(0).register_forward_hook(lambda *_: Path(path).touch())
        inputs, targets = SOURCE.batch(step, MICROBATCHES)
        pipeline.step(inputs, target=targets, losses=losses)
    pipeline.close()
    return [loss.item() for loss in losses]
