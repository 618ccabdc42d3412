"""Evaluations give one process's outputs, of any microbatches, and leave all else as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pipeloom.compiler import compile_schedule
from pipeloom.ir import Program
from pipeloom.runtime import Pipeline
from tests.support.hub import on_threads, own
from tests.support.models import LENGTH, VOCABULARY, Untied, whole
from tests.support.schedules import schedule

MICROBATCHES = 4


class Moody(nn.Module):
    """Computes otherwise in evaluation mode; changes a buffer in both; one part never trains."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Dropout(0.5).eval()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        out: Tensor = self.frozen(x) * (1 + 0.5 * self.training)
        return out


class MoodyTransformer(Untied):
    """Each stage but the last ends in a moody part."""

    def _stage(self, stage: int, count: int) -> nn.Module:
        module = super()._stage(stage, count)
        return module if stage == count - 1 else nn.Sequential(module, Moody())


SOURCE = MoodyTransformer()


def unequal() -> tuple[list[Tensor], list[Tensor]]:
    """Nine microbatches of one to three rows: more than M, and no multiple of it."""
    tokens = [torch.randint(0, VOCABULARY, (1 + j % 3, LENGTH + 1)) for j in range(9)]
    return [t[:, :-1] for t in tokens], [t[:, 1:] for t in tokens]


def evaluated(program: Program, inputs: Any, targets: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Outputs and losses of this rank, after a step."""
    pipeline = Pipeline.from_source(program, SOURCE, train=False, transport=own())
    first, wanted = SOURCE.batch(0, MICROBATCHES)
    pipeline.step(first, target=wanted)
    before, losses = everything(pipeline), list[Tensor]()
    output = pipeline.eval(inputs, target=targets, losses=losses)
    alone = pipeline.eval(inputs)  # without a target there are no losses
    torch.testing.assert_close(everything(pipeline), before, rtol=0.0, atol=0.0)
    torch.testing.assert_close(output, alone, rtol=0.0, atol=0.0)
    pipeline.close()
    found = [] if output is None else [output] if isinstance(output, Tensor) else [*output]
    return found, losses


def everything(pipeline: Pipeline) -> list[Any]:
    """What training goes on from, and what is said of its last step."""
    found: list[Any] = [torch.get_rng_state(), pipeline.peak_memory]
    found += [op.start for op in pipeline.trace()]
    for module in pipeline.modules.values():
        found += [p.grad.clone() for p in module.parameters() if p.grad is not None]
        found += [{name: value.clone() for name, value in module.state_dict().items()}]
        found += [part.training for part in module.modules()]
    return found


@pytest.mark.parametrize("family", ["zb-v", "chimera", "pipedream", "weipipe-interleave"])
def test_outputs_are_one_processs_and_training_is_undisturbed(family: str) -> None:
    """Of more microbatches than are trained, of unlike sizes, and of a whole batch."""
    program = compile_schedule(schedule(family, 2, MICROBATCHES))
    model, owner = whole(SOURCE, program.schedule.problem.stages), program.schedule.problem.owner
    model.eval()
    for inputs, targets in (unequal(), SOURCE.batch(1, MICROBATCHES)):
        whole_batch = len(inputs) == MICROBATCHES
        given = map(torch.cat, (inputs, targets)) if whole_batch else (inputs, targets)
        found = on_threads(evaluated, 2, (program, *given))
        for rank, (outputs, losses) in found.items():
            mine = [j for j in range(len(inputs)) if owner[-1][j % MICROBATCHES] == rank]
            assert len(losses) == len(mine)
            wanted = [model(inputs[j]) for j in mine]
            scored = [SOURCE.loss(out, targets[j]) for out, j in zip(wanted, mine, strict=True)]
            rows = [row for output in outputs for row in output]
            torch.testing.assert_close(rows, [row for output in wanted for row in output])
            torch.testing.assert_close(losses, scored)
