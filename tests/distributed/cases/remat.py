"""What the tests of recomputing and offloading run on every rank."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from pipeloom.compiler import compile_schedule
from pipeloom.ir.cost.remat import choice_of
from pipeloom.ir.cost.simulator import timed
from pipeloom.ir.errors import InputError
from pipeloom.ir.formats import dump_schedule
from pipeloom.ir.model.links import Link
from pipeloom.ir.model.ops import Op, OpKind
from pipeloom.ir.model.placement import Placement
from pipeloom.ir.model.problem import Problem
from pipeloom.ir.model.profile import Profile, StageProfile
from pipeloom.ir.model.schedule import Schedule
from pipeloom.ir.verify.schedule import verify_schedule
from pipeloom.runtime.executor.stage_runner import Cell, StageRunner
from pipeloom.runtime.executor.weight_grad_deferral import WeightQueue
from pipeloom.runtime.measure.activation_ledger import Ledger
from pipeloom.runtime.pipeline.pipeline import Pipeline
from pipeloom.runtime.tensors.stage_interface import Spec, StageInterface
from pipeloom.solver.core.relaxations import without_offloading, without_recomputing
from pipeloom.solver.optimize import optimize
from tests.support.hub import own
from tests.support.models import gradient, named, reference, worst

WIDTH, WIDER, LAYERS, ROWS = 16, 96, 3, 8
MICROBATCHES = 4


class Deep(nn.Module):
    """Layers that save much more than they take in."""

    def __init__(self, head: bool) -> None:
        super().__init__()
        self.up = nn.ModuleList(nn.Linear(WIDTH, WIDER) for _ in range(LAYERS))
        self.down = nn.ModuleList(nn.Linear(WIDER, WIDTH) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 1) if head else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        for up, down in zip(self.up, self.down, strict=True):
            x = x + down(functional.gelu(up(self.norm(x))))
        out: Tensor = self.head(x)
        return out


@dataclass(frozen=True)
class DeepModel:
    """A model source without random numbers or ties."""

    dtype: torch.dtype

    def stages(self, count: int) -> Sequence[Callable[[], nn.Module]]:
        return [partial(self._stage, s, s == count - 1) for s in range(count)]

    def _stage(self, stage: int, head: bool) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(stage)
            return Deep(head).to(self.dtype)

    def tied(self, count: int) -> Sequence[Sequence[tuple[int, str]]]:
        return []

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return functional.mse_loss(output, target)

    def batch(self, step: int, microbatches: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(microbatches, ROWS, WIDTH, generator=generator, dtype=self.dtype)
        y = torch.randn(microbatches, ROWS, 1, generator=generator, dtype=self.dtype)
        return [each.clone() for each in x], [each.clone() for each in y]

    def optimizer(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)


@dataclass(frozen=True)
class Case:
    """``lever``: recompute, offload or both; ``steps`` > 0 compares parameters after so many."""

    lever: str
    ranks: int
    dtype: torch.dtype
    steps: int = 0

    def __str__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.lever}-{self.ranks}-{dtype}" + f"-{self.steps}steps" * bool(self.steps)


@dataclass(frozen=True)
class Outcome:
    """``difference``: the worst parameter's, relative; ``peak`` and ``limit`` in bytes."""

    difference: float
    peak: int
    limit: float
    infeasible_without: float
    pulled: int
    violations: tuple[str, ...]
    losses: tuple[float, ...]
    expected_losses: tuple[float, ...]


def cases(ranks: int) -> list[Case]:
    levers = ("recompute", "offload")
    found = [Case(one, ranks, torch.float64, steps) for one in levers for steps in (0, 2)]
    return [*found, Case("both", ranks, torch.float32)]


def profile(lever: str, ranks: int, dtype: torch.dtype) -> Profile:
    """Of the model's stages, two a rank; memory in bytes, measured with the runtime's own
    ledger."""
    held, weights, kept = sizes(dtype)
    stage = StageProfile(2.0, 3.0, 2.0, held, weights, t_r=2.0, m_r=kept, m_o=kept)
    made_of = Profile((stage,) * 2 * ranks, ranks, t_comm=0.1, host_link=Link(0.0, 0.05))
    if lever == "recompute":
        return without_offloading(made_of)
    return without_recomputing(made_of) if lever == "offload" else made_of


def sizes(dtype: torch.dtype) -> tuple[float, float, float]:
    """M_B, M_W, and what is held of a microbatch that is away: the messages of a stage in
    between."""
    memory, module = Ledger(), Deep(head=False).to(dtype)
    x, dy = torch.randn(2, ROWS, WIDTH, dtype=dtype)
    x, dy = x.clone(), dy.clone()
    seed = torch.ones((), dtype=dtype)
    runner = StageRunner(1, module, memory=memory, last=False, loss=None, seed=seed)
    cell = Cell(WeightQueue(memory), StageInterface.one(Spec.of(x)))
    memory.start([module])
    memory.hold(x)
    memory.hold(dy)
    messages = memory.live
    cell.inputs, cell.dy = (x.requires_grad_(),), (dy,)
    runner.forward(cell)
    runner.backward(cell)
    return float(memory.peak), float(memory.live), float(messages)


@cache
def planned(lever: str, ranks: int, dtype: torch.dtype) -> Schedule:
    """A schedule at a limit that needs a lever: less than M_B of a rank's two stages."""
    made_of = profile(lever, ranks, dtype)
    stage = made_of.stages[0]
    limit = stage.m_b + 2 * (stage.m_r or stage.m_o or 0.0)
    problem = Problem(made_of, MICROBATCHES, Placement.v(ranks), (limit,) * ranks)
    return optimize(problem, work_limit=1.0, seed=1)


def given_up(schedule: Schedule, lever: str) -> Schedule:
    """With all activations recomputed (R) right before B, or offloaded (O) in between; "": as it
    is."""
    if not lever:
        return schedule
    first, last = {"R": ([OpKind.R], []), "O": ([OpKind.L], [OpKind.O])}[lever]
    rows = [
        [
            Op(kind, op.stage, op.microbatch)
            for op in schedule.ops(rank)
            for kind in (
                *(first if op.kind in (OpKind.B, OpKind.BW) else ()),
                op.kind,
                *(last if op.kind is OpKind.F else ()),
            )
        ]
        for rank in range(schedule.problem.ranks)
    ]
    return timed(replace(Schedule.of(schedule.problem, rows, "custom"), updates=schedule.updates))


def run_cases(chosen: list[tuple[Case, Schedule]]) -> list[Outcome]:
    """On every rank of one launch."""
    return [run_case(case, plan) for case, plan in chosen]


def refused(plan: Schedule) -> str:
    """Why a program that recomputes does not run a model whose numbers are of another length."""
    program, source = compile_schedule(plan), DeepModel(torch.float64)
    pipeline = Pipeline.from_source(program, source, train=False, transport=own())
    inputs, targets = source.batch(0, MICROBATCHES)
    with pytest.raises(InputError) as caught:
        pipeline.step(inputs, target=targets)
    pipeline.close()
    return str(caught.value)


def run_case(case: Case, plan: Schedule) -> Outcome:
    source = DeepModel(case.dtype)
    stages = plan.problem.stages
    pipeline = Pipeline.from_source(compile_schedule(plan), source, train=case.steps > 0)
    losses: list[Tensor] = []
    for step in range(max(1, case.steps)):
        inputs, targets = source.batch(step, MICROBATCHES)
        pipeline.step(inputs, target=targets, losses=losses)
    pipeline.close()
    history, expected = reference(
        source, stages, MICROBATCHES, steps=max(1, case.steps), train=case.steps > 0
    )
    found = named(pipeline.modules, Tensor.detach if case.steps else gradient)
    return Outcome(
        worst(found, expected),
        pipeline.peak_memory,
        plan.problem.memory_limit[pipeline.rank],
        2 * plan.problem.profile.stages[0].m_b,
        int((choice_of(plan.problem, plan.order) != 0).sum()),
        tuple(verify_schedule(dump_schedule(plan))),
        tuple(loss.item() for loss in losses),
        tuple(history[-1]),
    )
