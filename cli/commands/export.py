"""Writes a schedule in another system's format."""

from __future__ import annotations

import argparse
import sys

from ..arguments import FORMATS, add_output, example
from ..inputs import naming
from ..output import check_output, print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("schedule", metavar="SCHEDULE", help="schedule file, - for standard input")
    parser.add_argument("--to", choices=FORMATS, required=True, help="the format")
    add_output(parser, "text")
    example(parser, "pipeloom export schedule.json --to torch-csv -o schedule.csv")


def run(args: argparse.Namespace) -> int:
    from pipeloom.compiler.exporters import EXPORTERS
    from pipeloom.ir.formats import load_schedule, write_text

    check_output(args)
    schedule = load_schedule(args.schedule)
    exporter = EXPORTERS[args.to]
    with naming(args.schedule):
        text = exporter.write(schedule)
    to_stdout = args.output in (None, "-")
    if not (to_stdout and args.json):
        write_text(text, args.output or "-")
    if args.json:
        print_json({"output": args.output, "format": args.to, "lines": len(text.splitlines())})
    elif not to_stdout:
        print(f"{exporter.summary}\nwritten to {args.output}")
    sys.stdout.flush()
    return 0
