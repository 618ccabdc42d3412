"""What the tests of post-validation run on every rank: the same steps ahead of the norm, and after
it."""

from __future__ import annotations

import hashlib
import pickle
import time
from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeloom.ir.model.program import Program
from pipeloom.runtime.optim.optimizer_rollback import RevertibleOptimizer
from pipeloom.runtime.pipeline.model_source import ModelSource
from pipeloom.runtime.pipeline.pipeline import Pipeline
from pipeloom.runtime.rank.loss_scale import LossScale
from tests.support.models import TinyTransformer

CLIP = 50.0
Event = tuple[int, float]  # a rank, and what a gradient of it is multiplied by


@dataclass(frozen=True)
class Case:
    """``plan``: a family, and what becomes of its microbatches (R, O or nothing); ``events``: by
    step, what happens to a gradient."""

    plan: str
    optimizer: str = "adamw"
    clip: float | None = CLIP
    loss_scale: float | None = None
    param_dtype: torch.dtype | None = None
    events: tuple[tuple[int, Event], ...] = ()

    def __str__(self) -> str:
        dtype = str(self.param_dtype).removeprefix("torch.")
        return f"{self.plan}-{self.optimizer}-clip {self.clip}-scale {self.loss_scale}-{dtype}"


@dataclass(frozen=True)
class Run:
    """On one rank: a hash of each tensor at the end, losses bit by bit, the last norm, and the
    activation bytes still held."""

    hashes: dict[str, str]
    losses: list[list[float]]
    norm: float | None
    loss_scale: LossScale | None
    undone: int
    held: int


class Odd(torch.optim.Optimizer):
    """Keeps numbers and lists, changes its own options, replaces its state and writes gradients."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr, "decay": 1.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["decay"] *= 0.99
            for p in (p for p in group["params"] if p.grad is not None):
                entry = self.state[p]
                entry["count"] = entry.get("count", 0) + 1
                entry.setdefault("norms", []).append(float(p.grad.norm()))
                entry["mean"] = entry.get("mean", torch.zeros_like(p)) * 0.9 + p.grad
                p.grad.mul_(0.5).add_(entry["mean"])
                p.sub_(p.grad * group["lr"] * group["decay"] / entry["count"])


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": partial(torch.optim.AdamW, lr=1e-2),
    "adam": partial(torch.optim.Adam, lr=1e-2, amsgrad=True),
    "sgd": partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True),
    "plain sgd": partial(torch.optim.SGD, lr=0.05),
    "odd": partial(Odd, lr=0.05),
}


class Noise(nn.Module):
    """Dropout, and a running mean that each forward changes and uses."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.mean.lerp_(x.detach().float().mean(), 0.1)
        out: Tensor = self.drop(x) + self.mean
        return out


@dataclass(frozen=True)
class NoisyTransformer(TinyTransformer):
    """Each stage but the last ends in noise."""

    def _stage(self, stage: int, count: int) -> nn.Module:
        module = super()._stage(stage, count)
        if 0 < stage < count - 1:
            module = nn.Sequential(module, Noise())
        return module


@dataclass(frozen=True)
class Job:
    """``ahead``: the case's program with relays; ``waiting``: without."""

    case: Case
    ahead: Program
    waiting: Program
    source: ModelSource
    steps: int


def compare(jobs: Sequence[Job]) -> list[tuple[Run, Run]]:
    """Of each job the run that steps ahead, and the one in which all ranks wait for the norm."""
    return [(run(job, job.ahead), run(job, job.waiting)) for job in jobs]


def run(job: Job, program: Program) -> Run:
    case, source = job.case, job.source
    microbatches = program.schedule.problem.microbatches
    rank = dist.get_rank()
    torch.manual_seed(rank)
    count = program.schedule.problem.stages
    scale = None if case.loss_scale is None else LossScale(case.loss_scale, interval=3)
    pipeline = Pipeline(
        program,
        source.stages(count),
        loss=source.loss,
        optimizer=OPTIMIZERS[case.optimizer],
        tied=source.tied(count),
        param_dtype=case.param_dtype,
        clip_grad_norm=case.clip,
        loss_scale=scale,
        verify=rank == 0,
    )
    events, now = dict(case.events), [0]
    _disturb(pipeline.modules, {s: f for s, (r, f) in events.items() if r == rank}, now)
    plans = [
        torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.7)
        for optimizer in pipeline.optimizers.values()
    ]
    history = []
    with counting() as undone:
        for step in range(job.steps):
            now[0] = step
            losses: list[Tensor] = []
            inputs, targets = source.batch(step, microbatches)
            pipeline.step(inputs, target=targets, losses=losses, return_outputs=False)
            history.append([loss.item() for loss in losses])
            for plan in plans:
                plan.step()
        hashes = _hashes(pipeline)
    norm, scale_now, held = pipeline.grad_norm, pipeline.loss_scale, pipeline._memory.live
    result = Run(hashes, history, norm, scale_now, undone[0], held)
    pipeline.close()
    return result


def _disturb(modules: dict[int, nn.Module], factors: dict[int, float], now: list[int]) -> None:
    """Multiplies one gradient in the steps that ``factors`` names."""
    parameter = next(p for m in modules.values() for p in m.parameters())
    parameter.register_hook(lambda g: g * factors[now[0]] if now[0] in factors else None)


def run_ahead(program: Program, path: str) -> bool:
    """The last rank adds its part of the first norm when rank 0 has run an op of the next
    iteration."""
    source, rank = NoisyTransformer(torch.float32), dist.get_rank()
    pipeline = Pipeline(
        program,
        source.stages(program.schedule.problem.stages),
        loss=source.loss,
        optimizer=OPTIMIZERS["sgd"],
        clip_grad_norm=CLIP,
    )
    if rank == program.schedule.problem.ranks - 1:
        check_norm = pipeline._step_end.update.check_norm
        pipeline._step_end.update.check_norm = lambda: (_wait_for(Path(path)), check_norm())[1]  # type: ignore
    for step in range(2):
        if step == 1 and rank == 0:
            pipeline.store.module(0).register_forward_hook(lambda *_: Path(path).touch())
        inputs, targets = source.batch(step, program.schedule.problem.microbatches)
        pipeline.step(inputs, target=targets)
        if step == 0:
            copies = pickle.loads(pickle.dumps(pipeline.modules)), deepcopy(pipeline.modules)
            for module in (module for modules in copies for module in modules.values()):
                module.state_dict()  # of a copy, which waits for nothing
        assert pipeline._step_end.update.pending
    pipeline.close()
    return not pipeline._step_end.update.pending


def _wait_for(path: Path) -> None:
    end = time.monotonic() + 60
    while not path.exists():
        if time.monotonic() > end:
            raise TimeoutError("no rank went on to the next step")
        time.sleep(0.01)


class counting:  # noqa: N801
    """How many steps are taken back within."""

    def __enter__(self) -> list[int]:
        self._undo, count = RevertibleOptimizer.undo, [0]

        def undo(undoable: RevertibleOptimizer) -> None:
            count[0] += undoable._state is not None
            self._undo(undoable)

        RevertibleOptimizer.undo = undo  # type: ignore[method-assign]
        return count

    def __exit__(self, *_: object) -> None:
        RevertibleOptimizer.undo = self._undo  # type: ignore[method-assign]


def _hashes(pipeline: Pipeline) -> dict[str, str]:
    """Of parameters, buffers, gradients and optimizers; the state dicts wait for the verdict."""
    found: dict[str, Any] = {}
    for s, optimizer in pipeline.optimizers.items():
        found |= {f"{s} optimizer {k}": v for k, v in _flat(optimizer.state_dict()).items()}
    for s, module in pipeline.modules.items():
        found |= {f"{s} {name}": value for name, value in module.state_dict().items()}
        found |= {f"{s} {name}.grad": p.grad for name, p in module.named_parameters()}
    return {name: _hash(value) for name, value in found.items()}


def _flat(tree: Any, name: str = "") -> dict[str, Any]:
    if isinstance(tree, dict):
        entries: Iterable[tuple[Any, Any]] = tree.items()
    elif isinstance(tree, list):
        entries = enumerate(tree)
    else:
        return {name: tree}
    return {k: v for key, value in entries for k, v in _flat(value, f"{name}.{key}").items()}


def _hash(value: Any) -> str:
    data = value.detach().contiguous().view(-1) if isinstance(value, Tensor) else None
    text = repr(value).encode() if data is None else bytes(data.view(torch.uint8).numpy())
    return hashlib.sha256(text).hexdigest()
