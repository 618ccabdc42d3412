"""Writes a schedule in another system's format."""

from __future__ import annotations

import argparse
import sys

from ..arguments import FORMATS, add_output, example
from ..output import check_output, print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("schedule", metavar="SCHEDULE", help="schedule file, - for standard input")
    parser.add_argument("--to", choices=FORMATS, required=True, help="the format")
    add_output(parser, "text")
    example(parser, "pipeloom export schedule.json --to torch-csv -o schedule.csv")


def run(args: argparse.Namespace) -> int:
    from pipeloom.ir.formats import write_text
    from pipeloom.planner.exchange import export

    check_output(args)
    exported = export(args.schedule, args.to)
    to_stdout = args.output in (None, "-")
    if not (to_stdout and args.json):
        write_text(exported.text, args.output or "-")
    if args.json:
        print_json({"output": args.output} | exported.to_dict())
    elif not to_stdout:
        print(f"{exported.summary}\nwritten to {args.output}")
    sys.stdout.flush()
    return 0
