"""Converts another system's format to a schedule with the times of a profile."""

from __future__ import annotations

import argparse

from ...arguments import READ_BACK, add_cut, add_microbatches, add_output, example
from ...inputs import MICROBATCHES, typed
from ...output import check_output, finish_schedule
from ...progress import ProgressDisplay


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="file to read, - for standard input")
    parser.add_argument(
        "--from", dest="source", choices=READ_BACK, required=True, help="format of the input"
    )
    parser.add_argument(
        "--profile", metavar="PROFILE", required=True, help="times and sizes of the stages"
    )
    add_microbatches(parser, ", which a layout does not contain")
    add_cut(parser)
    add_output(parser, "schedule")
    example(
        parser,
        "pipeloom import schedule.csv --from torch-csv --profile profile.json -o schedule.json",
        "pipeloom import layout.txt --from megatron-layout --profile layers.json -m 16 -o s.json",
    )


def run(args: argparse.Namespace) -> int:
    from pipeloom.planner.exchange import import_

    check_output(args)
    with typed("partition", microbatches=MICROBATCHES):
        schedule = import_(
            args.file,
            args.source,
            args.profile,
            microbatches=args.microbatches,
            partition=args.partition,
            progress=ProgressDisplay(),
        )
    finish_schedule(args, schedule)
    return 0
