"""Draws schedules and programs in the terminal, or as SVG, HTML, PNG or a Chrome trace.

Several files, such as a planned and a measured schedule, are drawn below each other with one time
scale. --measured also lists by cause, rank and op where the run took longer than planned.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys

from pipeloom.planner.inputs.documents import PICTURES

from ...arguments import example
from ...inputs import options, typed
from ...output import check_apart, print_json, say_words
from ...progress import ProgressDisplay


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", metavar="FILE", nargs="+", help="schedule or program, - for standard input"
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        default="-",
        help=f"where to draw; the extension gives the kind: {', '.join(PICTURES)}; the terminal by "
        "default",
    )
    parser.add_argument(
        "--measured",
        metavar="TRACE",
        help="file written by run --trace for the same schedule: draw it below, and list where its "
        "time went",
    )
    parser.add_argument(
        "--memory",
        action="store_true",
        help="draw the memory of each rank over time below each timeline",
    )
    parser.add_argument(
        "--as",
        dest="kind",
        choices=list(PICTURES.values()),
        help="kind of picture, instead of the extension's",
    )
    parser.add_argument(
        "--title",
        metavar="TEXT",
        action="append",
        help="title of a panel; once for each file, in order",
    )
    parser.add_argument(
        "--colour",
        "--color",
        choices=["auto", "always", "never"],
        default="auto",
        help="colours in the terminal; auto uses them unless NO_COLOR is set",
    )
    parser.add_argument(
        "--columns", metavar="N", type=_columns, help="width of the picture in the terminal"
    )
    example(
        parser,
        "pipeloom show schedule.json",
        "pipeloom show schedule.json --memory -o schedule.svg",
        "pipeloom show program.json --measured measured.json -o both.svg",
        "pipeloom show a.json b.json --title '12 GB' --title '16 GB' -o two.svg",
        "pipeloom build zb-h1 profile.json -m 8 | pipeloom show - --as svg > schedule.svg",
    )


def run(args: argparse.Namespace) -> int:
    from pipeloom.ir.formats.atomic_write import write_bytes
    from pipeloom.planner.show import show
    from pipeloom.report.plan_vs_measured import text

    to_stdout = args.output == "-"
    if not to_stdout:
        check_apart(args, "--output", args.output)
    with typed("output", files="FILE", titles="--title"):
        picture = show(
            *args.files,
            output=None if to_stdout else args.output,
            **options(args, "measured", "kind"),
            memory=args.memory,
            titles=args.title,
            columns=args.columns or shutil.get_terminal_size((120, 24)).columns,
            colours=_coloured(args),
            progress=ProgressDisplay(),
        )
        if to_stdout and not args.json:
            write_bytes(picture.data, "-")
    if args.json:
        print_json({"output": None if to_stdout else args.output} | picture.to_dict())
        return 0
    if picture.attribution is not None:
        say_words(("\n" if to_stdout else "") + text(picture.attribution))
    if not to_stdout:
        say_words(f"written to {args.output}")
    return 0


def _coloured(args: argparse.Namespace) -> bool:
    on_terminal = args.output == "-" and sys.stdout.isatty()
    return args.colour == "always" or (
        args.colour == "auto" and on_terminal and not os.environ.get("NO_COLOR")
    )


def _columns(text: str) -> int:
    if not text.isdigit() or not 20 <= int(text) <= 10_000:
        raise argparse.ArgumentTypeError(f"expected a whole number from 20 to 10000, got {text!r}")
    return int(text)
