"""Trains, measures its own steps, and plans anew from them while the job runs.

After each --every steps the times of the last ones become the profile, the optimizer plans on it,
and training goes on by the new schedule where its plan is shorter; it stays where its steps are
too.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from pipeloom.report.text_table import table

from ..arguments import add_output, count, example, seconds
from ..inputs import named, naming, typed
from ..model_arguments import TYPED, add_training, need_torch, training_settings
from ..output import check_output, finish

if TYPE_CHECKING:
    from pipeloom.ir.model.program import Program
    from pipeloom.ir.model.schedule import Schedule
    from pipeloom.runtime.train.tune import TuneResult

WORTH = 0.005  # of the planned time; what saves less is not worth the change


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_training(parser, steps=20)
    parser.add_argument(
        "--every",
        metavar="N",
        type=count,
        default=5,
        help="steps under a program before the next plan, 5 by default; the first does not count",
    )
    parser.add_argument(
        "--time-limit",
        metavar="S",
        type=seconds,
        default=10.0,
        help="of one plan, during which training waits; 10 seconds by default",
    )
    add_output(parser, "schedule")
    example(
        parser,
        "pipeloom tune program.json --model examples.gpt:small --steps 20 -o tuned.json",
    )


def run(args: argparse.Namespace) -> int:
    need_torch()
    from pipeloom.ir.formats import dump_schedule, parse_program
    from pipeloom.ir.formats.json_reader import read_json
    from pipeloom.runtime.pipeline.layered_source import as_planned
    from pipeloom.runtime.pipeline.model_source import load_source
    from pipeloom.runtime.train.tune import check_tunable, tune_program

    check_output(args)
    program = parse_program(read_json(args.program), named(args.program))
    with naming(args.program):
        check_tunable(program)
    settings = training_settings(args)
    problem = program.schedule.problem
    tied = as_planned(load_source(args.model), problem.profile).tied(problem.stages)
    ties = tuple(tuple(stage for stage, _ in group) for group in tied)
    planner = Planner(program, ties, args.time_limit, args.seed)
    with typed("every", *TYPED):
        result = tune_program(program, args.model, settings, args.every, planner)
    if result is not None:  # under torchrun rank 0 alone speaks
        answer = {
            "steps": args.steps,
            "losses": list(result.losses),
            "seconds": list(result.seconds),
            "trials": [asdict(trial) for trial in result.trials],
        }
        finish(args, dump_schedule(result.program.schedule), answer, _words(result))
    return 0


@dataclass(frozen=True, slots=True)
class Planner:
    """A program for what was measured, where its plan is shorter than that of the one that ran.

    It is compiled as ``first`` was: with post-validation where that has it.
    """

    first: Program
    tied: Sequence[Sequence[int]]
    time_limit: float
    seed: int

    def __call__(self, traces: Sequence[Schedule]) -> Program | None:
        from pipeloom.compiler import compile_schedule
        from pipeloom.ir.cost.simulator import simulate
        from pipeloom.ir.model.program import Relay
        from pipeloom.planner.reprofile import reprofile
        from pipeloom.solver.optimize import optimize

        problem = replace(self.first.schedule.problem, profile=reprofile(traces))
        now = replace(traces[0], problem=problem, timing=None)
        found = optimize(problem, time_limit=self.time_limit, seed=self.seed)
        cost = (found.timing or simulate(found)).step(problem.objective)
        if cost > (1.0 - WORTH) * simulate(now).step(problem.objective):
            return None
        relays = any(isinstance(i, Relay) for row in self.first.instructions for i in row)
        return compile_schedule(found, tied=self.tied, post_validation=relays)


def _words(result: TuneResult) -> str:
    from pipeloom.ir.units import duration

    rows = [
        [
            f"to step {trial.steps}",
            "-" if trial.planned is None else duration(trial.planned),
            duration(trial.seconds * 1e3),
            "kept" if trial.kept else "slower, left again",
        ]
        for trial in result.trials
    ]
    first, best = result.trials[0].seconds, min(trial.seconds for trial in result.trials)
    return "\n".join(
        [
            table(["steps", "planned", "measured", ""], rows),
            f"a step takes {duration(best * 1e3)}, {best / first:.3f} of the first program's",
            f"loss {result.losses[0]:.4f} to {result.losses[-1]:.4f}",
        ]
    )
