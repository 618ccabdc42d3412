"""A new plan for a job that runs, from what its steps took: what ``tune`` plans with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipeloom.compiler import compile_schedule
from pipeloom.ir.cost.simulator import simulate
from pipeloom.ir.model.program import Program, Relay
from pipeloom.ir.model.schedule import Schedule
from pipeloom.solver.optimize import optimize

from .reprofile import reprofile

WORTH = 0.005
"""Share of the planned time below which a saving is not worth the change."""


@dataclass(frozen=True, slots=True)
class Replanner:
    """A program for what was measured, where its plan is shorter than that of the one that ran.

    It is compiled as ``first`` was: with post-validation where that has it. ``tied``: groups of
    stages that share parameters. ``time_limit``: seconds for each plan.
    """

    first: Program
    tied: Sequence[Sequence[int]]
    time_limit: float
    seed: int

    def __call__(self, traces: Sequence[Schedule]) -> Program | None:
        """``traces``: the last steps, timed. None where no shorter plan is found."""
        problem = replace(self.first.schedule.problem, profile=reprofile(traces))
        now = simulate(replace(traces[0], problem=problem, timing=None))
        found = optimize(problem, time_limit=self.time_limit, seed=self.seed)
        time = (found.timing or simulate(found)).iteration_time(problem.objective)
        if time > (1.0 - WORTH) * now.iteration_time(problem.objective):
            return None
        return compile_schedule(found, tied=self.tied, post_validation=relays(self.first))


def relays(program: Program) -> bool:
    """Whether the program has post-validation."""
    return any(isinstance(i, Relay) for row in program.instructions for i in row)
