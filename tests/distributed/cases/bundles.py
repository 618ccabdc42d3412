"""What the tests of edges with several tensors, skips and varying lengths run on every rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from pipeloom.compiler import compile_schedule
from pipeloom.ir.cost.simulator import timed
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule
from pipeloom.runtime.pipeline.pipeline import Pipeline
from pipeloom.solver.families import build_family
from pipeloom.solver.search.pattern_search import relabelled
from tests.distributed.cases.gradients import Outcome, V, folded
from tests.support.models import gradient, named, worst

RANKS, MICROBATCHES, ROWS, WIDTH = 3, 6, 2, 4
LENGTHS = (5, 3, 5, 9, 1, 3)
FAMILIES = ("1f1b", "zb-h1", "interleaved-1f1b:2", "zb-v", V, "weipipe-interleave", "wzb2")
ONE_PASSING = ("1f1b", "weipipe-interleave")


@dataclass(frozen=True)
class Case:
    """``skips``: from the first two stages to the last; ``varying``: lengths differ by microbatch
    and step; ``longest_first``: so they enter, by a profile of one number a microbatch; ``frozen``:
    the first stage trains nothing; ``whole``: in packets too long for a socket."""

    family: str
    dtype: torch.dtype
    skips: bool = False
    varying: bool = False
    longest_first: bool = False
    frozen: bool = False
    width: int = WIDTH

    def __str__(self) -> str:
        names = [
            name for name in ("skips", "varying", "longest_first", "frozen") if getattr(self, name)
        ]
        dtype = str(self.dtype).removeprefix("torch.")
        return "-".join([self.family, dtype, *names, *(["long"] * (self.width > WIDTH))])


CASES = [
    *(Case(family, torch.float64, skips=True, varying=True) for family in FAMILIES),
    *(Case(family, torch.float32) for family in FAMILIES),
    *(Case(family, torch.float64, frozen=True) for family in ONE_PASSING),
    *(Case(family, torch.float64, True, True, longest_first=True) for family in ("1f1b", "zb-v")),
    # some messages are packets, some go by Gloo
    Case("zb-h1", torch.float64, skips=True, varying=True, width=1024),
]


class First(nn.Module):
    """Of tokens: what is computed with, a mask, a table without gradient, two more, one unused."""

    def __init__(self, width: int, skips: bool) -> None:
        super().__init__()
        self.embedding, self.skips = nn.Embedding(11, width), skips

    def forward(self, tokens: Tensor) -> tuple[Tensor, ...]:
        x = self.embedding(tokens)
        table = torch.linspace(1, 2, tokens.shape[1], dtype=x.dtype)
        out = (x, tokens > 3, table, x.mean(1), x * 2)
        return (*out, x.tanh()) if self.skips else out


class Middle(nn.Module):
    """Passes on the mask and the table, uses the rest, drops ``unused``."""

    def __init__(self, width: int, stage: int, skips: bool) -> None:
        super().__init__()
        self.linear, self.stage, self.skips = nn.Linear(width, width), stage, skips

    def forward(
        self, x: Tensor, mask: Tensor, table: Tensor, mean: Tensor, *unused: Tensor
    ) -> tuple[Tensor, ...]:
        y = x + torch.tanh(self.linear(x)) * mask[..., None] * table[:, None]
        if self.stage % 2 == 0:
            mean = mean + y.mean(1)  # elsewhere it comes by
        out = (y, mask, table, mean)
        return (*out, y.sin()) if self.skips and self.stage == 1 else out


class Last(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.head = nn.Linear(width, 3)

    def forward(
        self, x: Tensor, mask: Tensor, table: Tensor, mean: Tensor, *skips: Tensor
    ) -> tuple[Tensor, Tensor]:
        for skip in skips:
            x = x * skip
        return self.head(x * table[:, None]), mean


def loss(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    scores, mean = output
    cross = nn.functional.cross_entropy(scores.flatten(0, 1), target.flatten())
    return cross + mean.pow(2).mean()


def stage(case: Case, count: int, index: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(index)
        if index == 0:
            module: nn.Module = First(case.width, case.skips)
            module.requires_grad_(not case.frozen)
        elif index == count - 1:
            module = Last(case.width)
        else:
            module = Middle(case.width, index, case.skips)
    return module.to(case.dtype)


def batch(case: Case, step: int) -> tuple[list[Tensor], list[Tensor]]:
    generator = torch.Generator().manual_seed(step)
    lengths = LENGTHS[step:] + LENGTHS[:step] if case.varying else [4] * MICROBATCHES
    shapes = [(ROWS, length) for length in lengths]
    tokens = [torch.randint(0, 11, shape, generator=generator) for shape in shapes]
    return tokens, [x % 3 for x in tokens]


def schedule(family: str) -> Schedule:
    if family == V:
        return folded(RANKS, MICROBATCHES)
    stages = (StageProfile(2.0, 2.0, 1.5, 1.0, 0.5, activation_bytes=1e3, weight_bytes=1e4),)
    return build_family(family, Profile(stages * RANKS, RANKS, t_comm=0.1), MICROBATCHES)


def entering_longest_first(family: str) -> Schedule:
    """Of a profile whose times and sizes are those of the lengths."""
    each = [StageProfile(n, n, 0.5 * n, n, 0.5 * n, activation_bytes=1e3 * n) for n in LENGTHS]
    stages = RANKS * (2 if family == "zb-v" else 1)
    profile = Profile((StageProfile.of(each),) * stages, RANKS, t_comm=0.1, microbatches=len(each))
    given = build_family(family, profile, MICROBATCHES)
    order = relabelled(given.order, np.argsort(-np.array(LENGTHS), kind="stable"))
    return timed(replace(given, order=order, timing=None))


def pairs(case: Case, stages: int) -> list[tuple[int, int]]:
    return [(1, stages - 1), (0, stages - 1)] if case.skips else []


def run_cases(chosen: Sequence[Case]) -> list[Outcome]:
    return [run_case(case) for case in chosen]


def run_case(case: Case) -> Outcome:
    plan = (entering_longest_first if case.longest_first else schedule)(case.family)
    count = plan.problem.stages
    pipeline = Pipeline(
        compile_schedule(plan),
        [partial(stage, case, count, s) for s in range(count)],
        loss=loss,
        skips=pairs(case, count),
        varying_shapes=case.varying,
    )
    losses: list[Tensor] = []
    for step in range(2):
        inputs, targets = batch(case, step)
        pipeline.step(inputs, target=targets, losses=losses)
    pipeline.close()
    history, expected = one_process(case, count)
    found = named(pipeline.modules, gradient)
    return Outcome(
        worst(found, expected) if found else 0.0,
        tuple(found),
        tuple(value.item() for value in losses),
        tuple(history),
    )


def one_process(case: Case, count: int) -> tuple[list[float], dict[str, Tensor]]:
    """Losses of the second step, gradients summed over both, by plain autograd."""
    stages = [stage(case, count, s) for s in range(count)]
    history: list[float] = []
    for step in range(2):
        history.clear()
        for x, y in zip(*batch(case, step), strict=True):
            value = loss(run(case, stages, x), y)
            (value / MICROBATCHES).backward()
            history.append(value.item())
    return history, named(dict(enumerate(stages)), gradient)


def run(case: Case, stages: Sequence[nn.Module], tokens: Tensor) -> tuple[Tensor, Tensor]:
    values: tuple[Tensor, ...] = (tokens,)
    kept: list[Tensor] = []
    for s, module in enumerate(stages[:-1]):
        values = module(*values)
        if case.skips and s < 2:
            kept.insert(0, values[-1])
            values = values[:-1]
    output: tuple[Tensor, Tensor] = stages[-1](*values, *kept)
    return output
