"""What the failure tests run on every rank."""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pipeloom.compiler import compile_schedule
from pipeloom.ir.ops import parse_order
from pipeloom.ir.problem import Passing, Placement, Problem
from pipeloom.ir.profile import Profile, StageProfile
from pipeloom.ir.program import Program
from pipeloom.ir.schedule import Schedule
from pipeloom.ir.simulate import timed
from pipeloom.runtime.errors import ShapeError
from pipeloom.runtime.pipeline import Pipeline
from tests.distributed.gradient_cases import schedule


class Failing(nn.Module):
    """Throws on its ``after``-th call."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.left = after

    def forward(self, x: Tensor) -> Tensor:
        self.left -= 1
        if self.left == 0:
            raise ValueError("a bad batch")
        out: Tensor = self.linear(x)
        return out


class Wider(nn.Module):
    """Gives more rows from its third call on."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x if self.calls < 3 else torch.cat([x, x])


def program() -> Program:
    return compile_schedule(schedule("1f1b", 2, 4))


def squared(output: Tensor, target: Tensor) -> Tensor:
    return (output - target).pow(2).mean()


def pipeline(first: nn.Module, last: nn.Module, timeout: float = 60.0) -> Pipeline:
    return Pipeline(program(), [first, last], loss=squared, timeout=timeout)


def step(pipe: Pipeline, rows: int = 8) -> None:
    x = torch.ones(rows, 4, requires_grad=True)
    pipe.step(x, target=torch.zeros(rows, 4))


def throws_in_a_forward() -> None:
    """The shape exchange runs the first stage once, so its third call is that of microbatch 1."""
    step(pipeline(Failing(after=3), nn.Linear(4, 4)))


def is_left_alone() -> None:
    """Rank 1 makes its pipeline and takes part in the shapes, then runs a step too few."""
    pipe = pipeline(nn.Linear(4, 4), nn.Linear(4, 4), timeout=2.0)
    step(pipe)
    if dist.get_rank() == 1:
        time.sleep(60)
    step(pipe)


def changes_a_shape() -> None:
    step(pipeline(nn.Sequential(nn.Linear(4, 4), Wider()), nn.Linear(4, 4)))


def changes_the_batch() -> str:
    """Rank 0 says what is wrong before anything is sent."""
    pipe = pipeline(nn.Linear(4, 4), nn.Linear(4, 4))
    step(pipe)
    if dist.get_rank() == 1:
        return ""
    try:
        step(pipe, rows=16)
    except ShapeError as error:
        return str(error)
    return "nothing was raised"


def alone(microbatches: int = 4) -> Program:
    """Two stages, both on one rank."""
    problem = Problem(
        Profile((StageProfile(1.0, 1.0, 1.0),) * 2, ranks=1),
        microbatches,
        Placement(Passing.ACTIVATIONS, (0, 0)),
        (float("inf"),),
    )
    text = "0F{0} 1F{0} 1B{0} 0B{0} 1W{0} 0W{0}"
    order = " ".join(text.format(j) for j in range(microbatches))
    return compile_schedule(timed(Schedule.of(problem, [parse_order(order)], "custom")))
