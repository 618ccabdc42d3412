"""Reads another system's format into a schedule, timed by a profile."""

from __future__ import annotations

import argparse

from .arguments import READ_BACK, add_output, example
from .output import check_output, finish_schedule
from .problems import named, read_profile


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="file to read, - for standard input")
    parser.add_argument(
        "--from", dest="source", choices=READ_BACK, required=True, help="the format"
    )
    parser.add_argument(
        "--profile", metavar="PROFILE", required=True, help="times and sizes of its stages"
    )
    add_output(parser, "schedule")
    example(
        parser,
        "pipeloom import schedule.csv --from torch-csv --profile profile.json -o schedule.json",
    )


def run(args: argparse.Namespace) -> int:
    from pipeloom.compiler.exporters import EXPORTERS
    from pipeloom.ir.reading import read_text

    check_output(args)
    read = EXPORTERS[args.source].read
    assert read is not None  # READ_BACK names only formats that can be read back
    profile = read_profile(args.profile)
    schedule = read(read_text(args.file, expected=args.source), profile, named(args.file))
    finish_schedule(args, schedule)
    return 0
