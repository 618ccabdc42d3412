"""On each rank: a schedule of torch's and one of ours on the same stages, batches and losses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, get_schedule_class

from pipeloom.torch import PlannedSchedule
from tests.distributed.cases.gradients import difference, schedule
from tests.support.models import TinyTransformer

RANKS = 4
CASES = (
    ("GPipe", "1f1b", 5),
    ("1F1B", "zb-h1", 6),
    ("Interleaved1F1B", "interleaved-1f1b:2", 4),
    ("ZBVZeroBubble", "zb-v", 6),
)
"""torch's schedule, our family, microbatches."""


@dataclass(frozen=True)
class Outcome:
    """How far gradients are from torch's, after one step and after two; whether losses and outputs
    are equal to its last digits; whether torch's schedule, converted, did the same."""

    gradients: float
    accumulated: float
    losses: bool
    outputs: bool


def compared() -> list[Outcome]:
    torch.set_num_threads(1)
    return [_compared(*case) for case in CASES]


class Scaled(nn.Module):
    """A stage with a keyword argument of each microbatch."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, *, rows: Tensor, factor: float = 1.0) -> Any:
        out = self.inner(x)
        return out * (rows * factor)[:, None, None].to(out.dtype)


def loss_of(output: Tensor, target: Tensor, *, weight: float) -> Tensor:
    return weight * nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


def stages_of(family: str, microbatches: int) -> tuple[list[PipelineStage], int]:
    """This rank's, made alike each time."""
    plan = schedule(family, RANKS, microbatches).problem
    make, count = TinyTransformer().stages(plan.stages), plan.stages
    mine = plan.placement.stages_of(dist.get_rank())
    return [PipelineStage(Scaled(make[s]()), s, count, torch.device("cpu")) for s in mine], count


def _compared(name: str, family: str, microbatches: int) -> Outcome:
    kind, source = get_schedule_class(name), TinyTransformer()
    theirs, _ = stages_of(family, microbatches)
    ours, _ = stages_of(family, microbatches)
    given: Any = theirs if issubclass(kind, PipelineScheduleMulti) else theirs[0]
    torchs = kind(given, microbatches, loss_fn=loss_of)
    mine = PlannedSchedule.of(torchs, schedule(family, RANKS, microbatches))
    mine = PlannedSchedule(ours, microbatches, loss_of, program=mine._plan)
    inputs, targets = map(torch.cat, source.batch(0, microbatches))
    rows = torch.linspace(0.5, 1.5, len(inputs), dtype=torch.float64)
    found: list[tuple[list[Tensor], Any]] = []
    for each in (torchs, mine):
        losses: list[Tensor] = []
        outputs = each.step(
            *([inputs] if dist.get_rank() == 0 else []),
            target=targets,
            losses=losses,
            loss_kwargs={"weight": 2.0},
            rows=rows,
            factor=0.5,
        )
        found.append(([x.detach() for x in losses], outputs))
    gradients = _worst(ours, theirs, 1)
    cut = [x.chunk(microbatches) for x in (inputs, targets, rows)]
    mine.step(
        arg_mbs=[(x,) for x in cut[0]] if dist.get_rank() == 0 else None,
        kwarg_mbs=[{"rows": x, "factor": 0.5} for x in cut[2]],
        target_mbs=list(cut[1]),
        loss_kwargs={"weight": 2.0},
        return_outputs=False,
    )
    (expected, whole), (losses, outputs) = found
    same = len(losses) == len(expected) and all(map(torch.equal, losses, expected))
    mine.pipeline.close()
    return Outcome(
        gradients,
        _worst(ours, theirs, 2),
        same,
        outputs is whole is None or torch.equal(outputs, whole),
    )


def _worst(ours: list[PipelineStage], theirs: list[PipelineStage], times: int) -> float:
    return max(
        difference(p.grad, times * q.grad)
        for mine, other in zip(ours, theirs, strict=True)
        for p, q in zip(mine.submod.parameters(), other.submod.parameters(), strict=True)
        if q.grad is not None
    )
