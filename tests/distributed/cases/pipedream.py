"""PipeDream on every rank, and one process that simulates its staleness with whole models.

The simulation knows nothing of schedules or stashes: stage s of p computes microbatch j with the
weights that it had after max(0, j - (p - 1 - s)) updates of the iteration, forwards and backwards,
and microbatch j's gradient makes update j + 1 of all stages.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pipeloom.compiler import compile_schedule
from pipeloom.ir.model.links import Link
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.runtime.pipeline.pipeline import Pipeline
from pipeloom.runtime.stages.store import made
from pipeloom.solver.families import build_family
from tests.distributed.cases.remat import given_up
from tests.support.models import Untied, named, worst

ITERATIONS = 2
BOUNDS = {torch.float32: 1e-6, torch.float64: 1e-12}


@dataclass(frozen=True)
class Case:
    ranks: int
    microbatches: int
    dtype: torch.dtype
    lever: str = ""

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.ranks}x{self.microbatches}-{dtype}" + f"-{self.lever}" * bool(self.lever)


@dataclass(frozen=True)
class Outcome:
    """One rank's largest difference of a parameter relative to its largest value; its losses."""

    difference: float
    parameters: int
    losses: tuple[float, ...]


def cases(ranks: int) -> list[Case]:
    """Enough microbatches for several versions to be under way, and fewer than ranks.

    On three ranks also with all of them recomputed (R), or offloaded (O), before their gradients.
    """
    counts = (2 * ranks + 1, ranks - 1)
    found = [
        Case(ranks, count, dtype) for count, dtype in zip(counts, reversed(BOUNDS), strict=True)
    ]
    levers = [Case(ranks, counts[0], torch.float64, lever) for lever in "RO"]
    return found + levers * (ranks == 3)


def run_cases(chosen: list[Case]) -> list[Outcome]:
    return [run_case(case) for case in chosen]


def run_case(case: Case) -> Outcome:
    source = Untied(case.dtype)
    stage = StageProfile(1.0, 1.0, 1.0, t_r=1.0, m_r=0.1, m_o=0.1)
    profile = Profile((stage,) * case.ranks, case.ranks, host_link=Link(0.0, 0.05))
    schedule = given_up(build_family("pipedream", profile, case.microbatches), case.lever)
    pipeline = Pipeline.from_source(compile_schedule(schedule), source)
    losses: list[Tensor] = []
    seen = []
    for iteration in range(ITERATIONS):
        inputs, targets = source.batch(iteration, case.microbatches)
        pipeline.step(inputs, target=targets, losses=losses)
        seen += [loss.item() for loss in losses]
    pipeline.close()
    expected, _ = simulated(case)
    found = named(pipeline.modules)
    return Outcome(worst(found, expected), len(found), tuple(seen))


def simulated(case: Case) -> tuple[dict[str, Tensor], list[float]]:
    """The parameters after all iterations, and every microbatch's loss."""
    source, ranks = Untied(case.dtype), case.ranks
    newest = [made(stage, s) for s, stage in enumerate(source.stages(ranks))]
    optimizers = [source.optimizer(module.parameters()) for module in newest]
    losses = []
    for iteration in range(ITERATIONS):
        history = [[deepcopy(module)] for module in newest]  # of each stage, after k updates
        for j, (x, y) in enumerate(zip(*source.batch(iteration, case.microbatches), strict=True)):
            used = [deepcopy(history[s][max(0, j - (ranks - 1 - s))]) for s in range(ranks)]
            loss = source.loss(nn.Sequential(*used)(x), y)
            loss.backward()
            losses.append(loss.item())
            for s in range(ranks):
                for mine, theirs in zip(newest[s].parameters(), used[s].parameters(), strict=True):
                    mine.grad = theirs.grad
                optimizers[s].step()
                optimizers[s].zero_grad()
                history[s].append(deepcopy(newest[s]))
    return named(dict(enumerate(newest))), losses
