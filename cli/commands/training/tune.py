"""Trains, measures its own steps, and plans anew from them while the job runs.

After each --every steps the times of the last ones become the profile, the optimizer plans on it,
and training goes on by the new schedule where its plan is shorter; it stays where its steps are
too. A model source with lengths(step) has its sequences packed and planned anew for each step, by
costs that are fitted after each --every of them.
"""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

from pipeloom.report.text_table import table

from ...argument_types import at_least_one, count, seconds
from ...arguments import add_output, example
from ...inputs import options, typed
from ...model_arguments import (
    TRAINING,
    TYPED,
    add_training,
    announce_loading,
    interrupted,
    need_program,
    need_torch,
)
from ...output import check_output, finish

if TYPE_CHECKING:
    from pipeloom.runtime.train.tuned_steps import TuneResult


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
        help="seconds for one plan, while training waits; 10 by default, 0.5 of a packed step",
    )
    parser.add_argument(
        "--max-tokens",
        metavar="T",
        type=at_least_one,
        help="most tokens of a microbatch, where the source's sequences are packed; any number "
        "by default",
    )
    add_output(parser, "schedule")
    example(
        parser,
        "pipeloom tune program.json --model examples.gpt:small --steps 20 -o tuned.json",
    )


def run(args: argparse.Namespace) -> int:
    need_torch()
    need_program(args.program)
    announce_loading(args)
    from pipeloom.ir.formats import dump_schedule
    from pipeloom.training import tune

    check_output(args)
    own = "every", "time_limit", "max_tokens"
    with typed(*own, *TYPED):
        asked = options(args, *TRAINING, *own)
        with interrupted(None) as told:
            asked |= {"callbacks": [told, *args.callbacks]}
            result = tune(args.program, args.model, **asked)
    if result is not None:  # under torchrun rank 0 alone speaks
        finish(args, dump_schedule(result.program.schedule), result.to_dict(), _words(result))
    return 0


def _words(result: TuneResult) -> str:
    from pipeloom.runtime.train.loop import lost_loss

    told = _of_programs(result) if result.attention is None else _of_packed(result)
    lost = "" if (line := lost_loss(result.losses)) is None else f"\n{line}"
    return f"{told}\nloss {result.losses[0]:.4f} to {result.losses[-1]:.4f}{lost}"


def _of_programs(result: TuneResult) -> str:
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
    return (
        f"{table(['steps', 'planned', 'measured', ''], rows)}\n"
        f"a step takes {duration(best * 1e3)}, {best / first:.3f} of the first program's"
    )


def _of_packed(result: TuneResult) -> str:
    from pipeloom.ir.units import duration

    rows = [
        [
            f"to step {trial.steps}",
            *(duration(x) for x in (trial.planned, trial.traced) if x is not None),
            duration(trial.seconds * 1e3),
        ]
        for trial in result.trials
    ]
    shares = {key: [round(x, 3) for x in row] for key, row in (result.attention or {}).items()}
    return (
        f"{table(['steps', 'planned', 'measured', 'with the change of programs'], rows)}\n"
        f'beside the profile, in a lengths file: "attention": {json.dumps(shares)}'
    )
