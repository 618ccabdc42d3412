"""Compiles a schedule to a program: a list of instructions for each rank."""

from __future__ import annotations

import argparse

from pipeloom.ir.units import counted

from ...arguments import add_output, add_schedule, example, stages
from ...inputs import options, typed
from ...output import check_output, finish
from ...progress import ProgressDisplay


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_schedule(parser)
    parser.add_argument(
        "--tied",
        metavar="S,S",
        type=_tied,
        action="append",
        default=[],
        help="stages that share parameters, whose gradients are summed; can be repeated",
    )
    parser.add_argument(
        "--post-validation",
        action="store_true",
        help="run the optimizer step before the norm of all gradients is known (for clipping and "
        "loss scaling), and roll it back if the norm requires it",
    )
    parser.add_argument(
        "--data-parallel",
        action="store_true",
        help="average each stage's gradients over several replicas of the pipeline, starting after "
        "the stage's last weight gradient",
    )
    add_output(parser, "program")
    example(
        parser,
        "pipeloom compile schedule.json -o program.json",
        "pipeloom compile schedule.json --tied 0,3 -o program.json",
        "pipeloom compile schedule.json --post-validation -o program.json",
        "pipeloom compile schedule.json --data-parallel -o program.json",
    )


def run(args: argparse.Namespace) -> int:
    from pipeloom.ir.formats import dump_program
    from pipeloom.planner.compile import compile, program_facts  # noqa: A004

    check_output(args)
    with typed("tied", "post_validation"):
        program = compile(
            args.schedule,
            **options(args, "tied", "post_validation", "data_parallel"),
            progress=ProgressDisplay(),
        )
    facts = program_facts(program)
    finish(
        args,
        dump_program(program),
        facts,
        f"{counted(sum(facts['instructions']), 'instruction')} on "
        f"{counted(facts['ranks'], 'rank')}, "
        f"at most {counted(max(facts['buffers']), 'receive buffer')} on one",
    )
    return 0


def _tied(text: str) -> list[int]:
    found = stages(text)
    if len(found) < 2:
        raise argparse.ArgumentTypeError(f"expected two stages or more, such as 0,3, got {text!r}")
    return found
