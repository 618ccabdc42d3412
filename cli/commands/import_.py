"""Reads another system's format into a schedule, timed by a profile."""

from __future__ import annotations

import argparse
import re

from pipeloom.ir.errors import InputError
from pipeloom.planner.partition.fixed_cut import add_cut, load_cuts

from ..arguments import READ_BACK, add_output, example
from ..inputs import document, named, profile_of
from ..output import check_output, finish_schedule


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="file to read, - for standard input")
    parser.add_argument(
        "--from", dest="source", choices=READ_BACK, required=True, help="the format"
    )
    parser.add_argument(
        "--profile", metavar="PROFILE", required=True, help="times and sizes of its stages"
    )
    add_cut(parser)
    add_output(parser, "schedule")
    example(
        parser,
        "pipeloom import schedule.csv --from torch-csv --profile profile.json -o schedule.json",
    )


def run(args: argparse.Namespace) -> int:
    from pipeloom.compiler.exporters import EXPORTERS
    from pipeloom.ir.formats.json_reader import read_text

    check_output(args)
    read = EXPORTERS[args.source].read
    assert read is not None  # READ_BACK names only formats that can be read back
    text = read_text(args.file, expected=args.source)
    if text.lstrip().startswith("{"):
        raise InputError(f"{named(args.file)}: is JSON; expected a file of {args.source}")
    cuts = load_cuts(args)
    profile = cuts.into(_stages(text)) if cuts else profile_of(document(args), named(args.profile))
    schedule = read(text, profile, named(args.file))
    finish_schedule(args, schedule)
    return 0


def _stages(text: str) -> int:
    """How many the cells name."""
    return 1 + max((int(number) for number in re.findall(r"\b([0-9]{1,6})[FIWB]", text)), default=0)
