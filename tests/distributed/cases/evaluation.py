"""What the tests of evaluation run on every rank: training with evaluations between the steps, and
without, and one process's outputs with the same parameters."""

from __future__ import annotations

import hashlib
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from pipeloom.ir.model.program import Program
from pipeloom.runtime.pipeline.pipeline import Pipeline
from pipeloom.runtime.stages.store import made
from tests.support.hub import own
from tests.support.models import LENGTH, VOCABULARY, TinyTransformer, full

STEPS = 2


class Moody(nn.Module):
    """Computes otherwise in evaluation mode; changes a buffer in both; one part never trains."""

    mean: Tensor
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Dropout(0.5).eval()
        self.register_buffer("mean", torch.zeros((), dtype=torch.float64))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        if self.training:
            self.mean.lerp_(x.detach().double().mean(), 0.1)
        # the norms after it take away the mean, of which each copy of a stage has its own
        out: Tensor = self.frozen(x) * (1 + 0.5 * self.training) + self.mean.to(x.dtype)
        return out


@dataclass(frozen=True)
class MoodyTransformer(TinyTransformer):
    """Each stage but the last ends in a moody part."""

    ties: bool = True

    def _stage(self, stage: int, count: int) -> nn.Module:
        module = super()._stage(stage, count)
        return module if stage == count - 1 else nn.Sequential(module, Moody())

    def tied(self, count: int) -> Any:
        return [[(0, "0.embedding.weight"), (count - 1, "head.weight")]] if self.ties else []


@dataclass(frozen=True)
class Outcome:
    """On one rank: hashes of all that training changes, its losses bit by bit; how far evaluations'
    outputs and losses are from one process's, and how many were compared."""

    hashes: dict[str, str]
    losses: list[float]
    apart: float = 0.0
    compared: int = 0
    trace: list[str] = field(default_factory=list)


def unequal(step: int) -> tuple[list[Tensor], list[Tensor]]:
    """Nine microbatches of one to three rows: more than M, and no multiple of it."""
    generator = torch.Generator().manual_seed(1000 + step)
    tokens = [
        torch.randint(0, VOCABULARY, (1 + j % 3, LENGTH + 1), generator=generator) for j in range(9)
    ]
    return [t[:, :-1] for t in tokens], [t[:, 1:] for t in tokens]


def trained(program: Program, source: MoodyTransformer, evaluates: bool) -> Outcome:
    """Two steps, before and after each of which the model is evaluated, or not."""
    torch.manual_seed(7)
    count = program.schedule.problem.stages
    pipeline = Pipeline(
        program,
        source.stages(count),
        loss=source.loss,
        optimizer=source.optimizer,
        tied=source.tied(count),
        transport=own(),
    )
    history: list[float] = []
    apart, compared = 0.0, 0
    for step in range(STEPS):
        for part in range(evaluates * 2):
            difference, amount = _evaluated(pipeline, source, step, whole=part == 1)
            apart, compared = max(apart, difference), compared + amount
        inputs, targets = source.batch(step, pipeline.microbatches)
        losses: list[Tensor] = []
        pipeline.step(inputs, target=targets, losses=losses)
        history += [loss.item() for loss in losses]
    peak, before = pipeline.peak_memory, pipeline.trace()
    if evaluates:
        difference, amount = _evaluated(pipeline, source, STEPS, whole=False)
        apart, compared = max(apart, difference), compared + amount
    assert (pipeline.peak_memory, pipeline.trace()) == (peak, before)
    pipeline.close()
    trace = [str(op.op) for op in before]
    return Outcome(_hashes(pipeline), history, apart, compared, trace)


def _evaluated(
    pipeline: Pipeline,
    source: MoodyTransformer,
    step: int,
    *,
    whole: bool,
) -> tuple[float, int]:
    """How far outputs and losses are from one process's, and how many tensors were compared."""
    inputs, targets = source.batch(100 + step, pipeline.microbatches) if whole else unequal(step)
    given: Any = (torch.cat(list(inputs)), torch.cat(list(targets))) if whole else (inputs, targets)
    losses: list[Tensor] = []
    output = pipeline.eval(given[0], target=given[1], losses=losses)
    alone = pipeline.eval(given[0])  # without a target there are no losses
    assert not torch.is_grad_enabled() or all(x.requires_grad is False for x in losses)
    expected, wanted = _one_process(pipeline, source, list(inputs), list(targets))
    mine = _mine(pipeline, len(inputs))
    if not mine:
        assert (output, alone, losses) == (None, None, [])
        return 0.0, 0
    found = output if isinstance(output, Tensor) else torch.cat(output)
    assert torch.equal(found, alone if isinstance(alone, Tensor) else torch.cat(alone))
    outputs = torch.cat([expected[j] for j in mine])
    worst = max(
        _difference(found, outputs),
        _difference(torch.stack(losses), torch.stack([wanted[j] for j in mine])),
    )
    return worst, len(mine)


def _mine(pipeline: Pipeline, count: int) -> list[int]:
    """The microbatches that end on this rank."""
    owner = pipeline.program.schedule.problem.owner[-1]
    return [j for j in range(count) if owner[j % len(owner)] == pipeline.rank]


def _one_process(
    pipeline: Pipeline,
    source: MoodyTransformer,
    inputs: list[Tensor],
    targets: list[Tensor],
) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs and losses of the whole model, with the parameters that all ranks have now."""
    held = {
        (s, name): full(value).detach().clone()
        for s, module in pipeline.modules.items()
        for name, value in module.state_dict().items()
    }
    state = {key: value for row in pipeline.gather(held) for key, value in row.items()}
    modules = [made(make, s) for s, make in enumerate(source.stages(pipeline.num_stages))]
    for s, module in enumerate(modules):
        own = {name: value for (stage, name), value in state.items() if stage == s}
        module.load_state_dict(own)
    model = nn.Sequential(*modules).eval()
    with torch.no_grad():
        outputs = [model(x) for x in inputs]
        return outputs, [source.loss(*pair) for pair in zip(outputs, targets, strict=True)]


def _hashes(pipeline: Pipeline) -> dict[str, str]:
    found = {
        f"{s}.{name}": value
        for s, module in pipeline.modules.items()
        for name, value in module.state_dict().items()
    }
    for s, optimizer in pipeline.optimizers.items():
        for i, entry in optimizer.state_dict()["state"].items():
            found |= {f"{s}.{i}.{key}": torch.as_tensor(value) for key, value in entry.items()}
    hashes = {name: _hash(full(value)) for name, value in found.items()}
    modes = {
        f"{s}.{name} trains": str(part.training)
        for s, module in pipeline.modules.items()
        for name, part in module.named_modules()
    }
    return hashes | modes


def _hash(value: Tensor) -> str:
    return hashlib.sha256(deepcopy(value.detach()).view(-1).numpy().tobytes()).hexdigest()


def _difference(found: Tensor, expected: Tensor) -> float:
    assert found.shape == expected.shape
    return float((found.double() - expected.double()).abs().max() / expected.abs().max())
