"""Compiles a schedule to a program: what each rank does, instruction by instruction."""

from __future__ import annotations

import argparse
import sys

from pipeloom.ir.units import counted

from ..arguments import add_output, example, stages
from ..inputs import named, naming, typed
from ..output import check_output, finish


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("schedule", metavar="SCHEDULE", help="schedule file, - for standard input")
    parser.add_argument(
        "--tied",
        metavar="S,S",
        type=_tied,
        action="append",
        default=[],
        help="stages that share parameters, whose gradients are summed; may be given again",
    )
    parser.add_argument(
        "--post-validation",
        action="store_true",
        help="ranks step before the norm of all gradients is known (clipping, loss scaling), and "
        "again "
        "where it then says otherwise, instead of waiting for each other",
    )
    parser.add_argument(
        "--data-parallel",
        action="store_true",
        help="for several replicas of the pipeline: each stage's gradient is averaged over them, "
        "from "
        "its last weight gradient on",
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
    from pipeloom.compiler import compile_schedule
    from pipeloom.ir.formats import dump_program, load_schedule

    check_output(args)
    schedule = load_schedule(args.schedule)
    with naming(args.schedule), typed("tied", "post_validation"):
        program = compile_schedule(
            schedule,
            tied=args.tied,
            data_parallel=args.data_parallel,
            post_validation=args.post_validation,
        )
    replicas = schedule.problem.profile.data_parallel
    if replicas is not None and replicas.size > 1 and not args.data_parallel:
        print(
            f"pipeloom: note: {named(args.schedule)}: planned for "
            f"{counted(replicas.size, 'replica')} (data_parallel); "
            "without --data-parallel the program does not average their gradients",
            file=sys.stderr,
        )
    lengths = [len(instructions) for instructions in program.instructions]
    buffers = [len(names) for names in program.buffers]
    finish(
        args,
        dump_program(program),
        {"ranks": len(lengths), "instructions": lengths, "buffers": buffers},
        f"{counted(sum(lengths), 'instruction')} on {counted(len(lengths), 'rank')}, "
        f"at most {counted(max(buffers), 'receive buffer')} on one",
    )
    return 0


def _tied(text: str) -> list[int]:
    found = stages(text)
    if len(found) < 2:
        raise argparse.ArgumentTypeError(f"expected two stages or more, such as 0,3, got {text!r}")
    return found
