"""What the gradient tests run on every rank: a program, and one process to compare with."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from pipeloom.compiler import compile_schedule
from pipeloom.ir.cost.simulator import timed
from pipeloom.ir.model.placement import Passing
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule
from pipeloom.runtime.pipeline.pipeline import Pipeline
from pipeloom.runtime.rank.options import StagesAs
from pipeloom.runtime.transport import Transport, whereabouts
from pipeloom.solver.families import ASYNCHRONOUS, build_family
from tests.support.by_hand import by_hand
from tests.support.families import ELSEWHERE, families_of
from tests.support.models import TinyTransformer, gradient, named, reference, worst

BOUNDS = {torch.float32: 1e-6, torch.float64: 1e-12}
V = "v, every other backward split"
# the first count is no multiple of the ranks
MICROBATCHES = {2: (5, 4), 3: (4, 7), 4: (6, 9)}


@dataclass(frozen=True)
class Case:
    """One program on one model; ``steps`` > 0 compares the parameters after so many steps."""

    family: str
    ranks: int
    microbatches: int
    dtype: torch.dtype
    steps: int = 0
    slow: bool = False
    stages_as: StagesAs = "eager"

    def __str__(self) -> str:
        steps = f"-{self.steps}steps" if self.steps else ""
        dtype = str(self.dtype).removeprefix("torch.")
        graphs = "" if self.stages_as == "eager" else f"-{self.stages_as}"
        return f"{self.family}-{self.ranks}x{self.microbatches}-{dtype}{steps}{graphs}"


@dataclass(frozen=True)
class Outcome:
    """On one rank: the worst parameter's difference relative to its largest value, and the
    losses."""

    difference: float
    parameters: tuple[str, ...]
    losses: tuple[float, ...]
    expected_losses: tuple[float, ...]


def cases(ranks: int) -> list[Case]:
    """Every synchronous family that travels by activations, in both dtypes; on two ranks, three
    steps too.

    Each takes each dtype and each count once, on three ranks the other way round; those with one
    stage a rank, which are few, in slow cases all four of them.
    """
    one, many = MICROBATCHES[ranks]
    fitting = [name for name in families_of(ranks) if name not in ASYNCHRONOUS]
    names = [name for name in fitting if passing(name, ranks, one) is Passing.ACTIVATIONS]
    in_turn = [*zip((one, many) if ranks == 3 else (many, one), BOUNDS, strict=True)]
    tried = [Case(name, ranks, m, dtype) for name in (*names, V) for m, dtype in in_turn]
    few = [V, *(name for name in names if name not in ELSEWHERE)]
    others = [
        Case(name, ranks, m, dtype, slow=True)
        for name, m, dtype in itertools.product(few, (one, many), BOUNDS)
        if (m, dtype) not in in_turn
    ]
    trained = [Case(name, ranks, one, torch.float64, steps=3) for name in (*names, V)]
    return tried + others + trained * (ranks == 2)


def passing(family: str, ranks: int, microbatches: int) -> Passing:
    return build_family(family, profile(ranks), microbatches).problem.placement.passing


def profile(ranks: int) -> Profile:
    return Profile((StageProfile(2.0, 2.0, 1.5, 1.0, 0.5, t_fb=4.0),) * ranks, ranks, t_comm=0.1)


def schedule(family: str, ranks: int, microbatches: int) -> Schedule:
    if family == V:
        return folded(ranks, microbatches)
    return build_family(family, profile(ranks), microbatches)


def folded(ranks: int, microbatches: int) -> Schedule:
    """Two stages a rank, the second half backwards: the ends of the model share rank 0.

    All forwards, then all backwards; odd microbatches with B and W as one op, even ones apart.
    """
    stages = 2 * ranks
    owners = [min(s, stages - 1 - s) for s in range(stages)]
    rows: list[list[str]] = [[] for _ in range(ranks)]
    for j, s in itertools.product(range(microbatches), range(stages)):
        rows[owners[s]].append(f"{s}F{j}")
    for j, s in itertools.product(range(microbatches), reversed(range(stages))):
        rows[owners[s]].append(f"{s}BW{j}" if j % 2 else f"{s}B{j}")
    for j, s in itertools.product(range(0, microbatches, 2), range(stages)):
        rows[owners[s]].append(f"{s}W{j}")
    return timed(by_hand(*map(" ".join, rows), profile=profile(ranks).split(2)))


def run_cases(chosen: list[Case]) -> list[Outcome]:
    """On every rank of one launch."""
    return [run_case(case) for case in chosen]


def run_case(case: Case, transport: Transport | None = None) -> Outcome:
    source = TinyTransformer(case.dtype)
    plan = schedule(case.family, case.ranks, case.microbatches)
    stages = plan.problem.stages
    tied = [sorted({s for s, _ in group}) for group in source.tied(stages)]
    program = compile_schedule(plan, tied=tied)
    rank, _ = whereabouts()
    pipeline = Pipeline.from_source(
        program,
        source,
        train=case.steps > 0,
        verify=rank == 0,
        stages_as=case.stages_as,
        transport=transport,
    )
    losses: list[Tensor] = []
    for step in range(max(1, case.steps)):
        inputs, targets = source.batch(step, case.microbatches)
        if step % 2:  # a whole batch, which the pipeline cuts
            pipeline.step(torch.cat(list(inputs)), target=torch.cat(list(targets)), losses=losses)
        else:
            pipeline.step(inputs, target=targets, losses=losses)
    assert not pipeline.eager_stages, pipeline.eager_stages
    pipeline.close()
    history, expected = one_process(source, stages, case.microbatches, case.steps)
    found = named(pipeline.modules, Tensor.detach if case.steps else gradient)
    return Outcome(
        worst(found, expected),
        tuple(found),
        tuple(loss.item() for loss in losses),
        tuple(history[-1]),
    )


@cache
def one_process(
    source: TinyTransformer, stages: int, microbatches: int, steps: int
) -> tuple[list[list[float]], dict[str, Tensor]]:
    """Once for all families: losses, and gradients or, where there are steps, parameters."""
    return reference(source, stages, microbatches, steps=max(1, steps), train=steps > 0)
