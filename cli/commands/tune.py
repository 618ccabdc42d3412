"""Trains, measures its own steps, and plans anew from them while the job runs.

After each --every steps the times of the last ones become the profile, the optimizer plans on it,
and training goes on by the new schedule where its plan is shorter; it stays where its steps are
too.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from pipeloom.report.text_table import table

from ..arguments import add_output, count, example, seconds
from ..inputs import options, typed
from ..model_arguments import TRAINING, TYPED, add_training, need_torch
from ..output import check_output, finish

if TYPE_CHECKING:
    from pipeloom.runtime.train.tune import TuneResult


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
        help="seconds for one plan, while training waits; 10 by default",
    )
    add_output(parser, "schedule")
    example(
        parser,
        "pipeloom tune program.json --model examples.gpt:small --steps 20 -o tuned.json",
    )


def run(args: argparse.Namespace) -> int:
    need_torch()
    from pipeloom.ir.formats import dump_schedule
    from pipeloom.training import tune

    check_output(args)
    with typed("every", *TYPED):
        result = tune(args.program, args.model, **options(args, *TRAINING, "every", "time_limit"))
    if result is not None:  # under torchrun rank 0 alone speaks
        finish(args, dump_schedule(result.program.schedule), result.to_dict(), _words(result))
    return 0


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
