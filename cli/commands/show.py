"""Draws a schedule, or a program's: in the terminal, or as SVG, HTML, PNG or a Chrome trace.

Several files, say a planned and a measured schedule, are drawn under each other on one time scale.
With --measured, what the run took beyond its plan is told as well: per cause, rank and op.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pipeloom.ir.errors import InputError, InvalidScheduleError

from ..arguments import example
from ..inputs import named
from ..output import describe, print_json

if TYPE_CHECKING:
    from pipeloom.ir.model.schedule import Schedule
    from pipeloom.report.attribution import Attribution

KINDS = {".svg": "svg", ".html": "html", ".png": "png", ".trace.json": "trace", ".txt": "text"}
SHOWN = 4
"""Of ops that wait for each other in a circle."""
# programs that turn an SVG on standard input into a PNG on standard output
CONVERTERS = (
    ("rsvg-convert", "--format=png", "--zoom=2"),
    ("inkscape", "--pipe", "--export-type=png", "--export-filename=-"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", metavar="FILE", nargs="+", help="schedule or program, - for standard input"
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        default="-",
        help=f"picture by its extension: {', '.join(KINDS)}; the terminal by default",
    )
    parser.add_argument(
        "--measured",
        metavar="TRACE",
        help="what `run --trace` wrote of the same schedule: drawn below it, and where its time "
        "went",
    )
    parser.add_argument(
        "--as", dest="kind", choices=list(KINDS.values()), help="whatever the extension"
    )
    parser.add_argument(
        "--title",
        metavar="TEXT",
        action="append",
        help="of a panel, in place of its file's name; once for each file, in their order",
    )
    parser.add_argument(
        "--colour",
        choices=["auto", "always", "never"],
        default="auto",
        help="auto: on a terminal, unless NO_COLOR is set",
    )
    parser.add_argument(
        "--columns", metavar="N", type=_columns, help="width of the terminal's picture"
    )
    example(
        parser,
        "pipeloom show schedule.json",
        "pipeloom show schedule.json -o schedule.svg",
        "pipeloom show program.json --measured measured.json -o both.svg",
        "pipeloom show a.json b.json --title '12 GB' --title '16 GB' -o two.svg",
        "pipeloom build zb-h1 profile.json -m 8 | pipeloom show - --as svg > schedule.svg",
    )


def run(args: argparse.Namespace) -> int:
    kind = args.kind or _kind(args.output)
    schedules = _schedules(args)
    for file, (_, schedule) in zip(args.files, schedules, strict=False):
        _tell_stuck(file, schedule)
    found = None if args.measured is None else _attributed(args, schedules)
    if not (args.json and args.output == "-"):
        _draw(args, kind, schedules)
    if args.json:
        from pipeloom.ir.formats import dump_schedule
        from pipeloom.report.plan_vs_measured import as_json

        shown = [{"name": name} | describe(dump_schedule(s)) for name, s in schedules]
        answer = {"output": args.output if args.output != "-" else None, "schedules": shown}
        print_json(answer | ({} if found is None else {"attribution": as_json(found)}))
        return 0
    if found is not None:
        from pipeloom.report.plan_vs_measured import text

        print(("\n" if args.output == "-" else "") + text(found))
    if args.output != "-":
        print(f"written to {args.output}")
    return 0


def _schedules(args: argparse.Namespace) -> list[tuple[str, Schedule]]:
    """Those of all files, each with its title."""
    if args.measured is not None and len(args.files) != 1:
        raise InputError(f"FILE: expected one beside --measured, got {len(args.files)}")
    files = [*args.files, *([] if args.measured is None else [args.measured])]
    if files.count("-") > 1:
        raise InputError("FILE: expected - once at most: there is one standard input")
    titles = args.title or (
        ["planned", "measured"]
        if args.measured is not None
        else [Path(f).stem if f != "-" else "schedule" for f in files]
    )
    if len(titles) != len(files):
        raise InputError(f"--title: expected one for each of {len(files)} files, got {len(titles)}")
    return [(title, load_any(file)) for title, file in zip(titles, files, strict=True)]


def _tell_stuck(file: str, schedule: Schedule) -> None:
    """Says of a schedule that can never run that its picture is of the times in the file."""
    from pipeloom.ir.cost.dependency_graph import ScheduleGraph

    try:
        ops = ScheduleGraph.of(schedule).cycle()
    except InvalidScheduleError as error:
        reason = error.violations[0]
    else:
        more = f", and so on, {len(ops) - 1} in a circle" if len(ops) > SHOWN else ""
        reason = " waits for ".join(ops[:SHOWN]) + more
    if reason:
        print(
            f"pipeloom: note: {named(file)}: can never run: {reason}; drawn by the times in the "
            "file",
            file=sys.stderr,
        )


def _attributed(args: argparse.Namespace, schedules: list[tuple[str, Schedule]]) -> Attribution:
    from pipeloom.report.attribution import attribute

    (_, planned), (_, measured) = schedules
    try:
        return attribute(planned, measured)
    except InputError as error:
        raise InputError(f"{named(args.measured)}: {error}") from None


def load_any(path: str) -> Schedule:
    """The schedule in a file, or the one that a program in it was compiled from."""
    from pipeloom.ir.formats import PROGRAM, parse_program, parse_schedule
    from pipeloom.ir.formats.json_reader import read_json

    document = read_json(path)
    if document.get("format") == PROGRAM:
        return parse_program(document, named(path)).schedule
    return parse_schedule(document, named(path))


def _kind(output: str) -> str:
    if output == "-":
        return "text"
    for extension, kind in KINDS.items():
        if output.endswith(extension):
            return kind
    raise InputError(f"--output: expected a name that ends in {', '.join(KINDS)}, got {output!r}")


def _columns(text: str) -> int:
    if not text.isdigit() or not 20 <= int(text) <= 10_000:
        raise argparse.ArgumentTypeError(f"expected a whole number from 20 to 10000, got {text!r}")
    return int(text)


def _draw(args: argparse.Namespace, kind: str, schedules: list[tuple[str, Schedule]]) -> None:
    from pipeloom.ir.formats.atomic_write import write_bytes
    from pipeloom.report.chrome_trace import trace_events
    from pipeloom.report.timeline_html import timeline_html
    from pipeloom.report.timeline_svg import timeline_svg

    if kind == "text":
        data = _terminal(args, schedules).encode()
    elif kind == "trace":
        if len(schedules) > 1:
            raise InputError(f"FILE: expected one file for a trace, got {len(schedules)}")
        data = json.dumps(trace_events(schedules[0][1])).encode()
    elif kind == "html":
        data = timeline_html(schedules).encode()
    else:
        svg = timeline_svg(schedules).encode()
        data = svg if kind == "svg" else _png(svg)
    write_bytes(data, args.output)


def _terminal(args: argparse.Namespace, schedules: list[tuple[str, Schedule]]) -> str:
    from pipeloom.report.timeline_text import timeline_text

    on_terminal = args.output == "-" and sys.stdout.isatty()
    colours = args.colour == "always" or (
        args.colour == "auto" and on_terminal and not os.environ.get("NO_COLOR")
    )
    columns = args.columns or shutil.get_terminal_size((120, 24)).columns
    titled = args.title or args.measured is not None
    return "\n".join(
        timeline_text(schedule, title=title if titled else None, columns=columns, colours=colours)
        for title, schedule in schedules
    )


def _png(svg: bytes) -> bytes:
    for name, *options in CONVERTERS:
        program = shutil.which(name)
        if program is None:
            continue
        done = subprocess.run([program, *options], input=svg, capture_output=True, check=False)
        if done.returncode == 0 and done.stdout:
            return done.stdout
    names = " or ".join(name for name, *_ in CONVERTERS)
    raise InputError(f"--output: PNG needs {names} on the PATH; write .svg instead")
