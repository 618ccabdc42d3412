"""Sweeps the memory limit: the best schedule for each, and a picture of limit against bubble rate.

Writes schedule-LIMIT.json for each feasible limit, results.json, results.csv and frontier.svg.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ..arguments import (
    add_instance,
    add_partition,
    add_passing,
    add_profile,
    add_solver,
    example,
    limits,
)
from ..inputs import (
    MICROBATCHES,
    OPTIMIZER_OPTIONS,
    TABLE_OPTIONS,
    cache_folder,
    options,
    read_profile,
    typed,
)
from ..output import print_json
from ..progress import interruptible, watched


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_profile(parser)
    add_instance(parser)
    add_passing(parser)
    parser.add_argument(
        "--memory-limits",
        metavar="A,B,...",
        type=limits,
        required=True,
        help="activation memory of each rank, in the profile's unit (20G or 16GiB where that is "
        "bytes); none is one too",
    )
    add_solver(parser, time_limit=30.0, what="each limit")
    add_partition(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        required=True,
        help="folder for the results; made if absent",
    )
    example(parser, "pipeloom sweep profile.json -m 24 --memory-limits 8,10,12,14,16 -o sweep/")


def run(args: argparse.Namespace) -> int:
    from pipeloom.planner.sweep import sweep

    faults = typed(*OPTIMIZER_OPTIONS, "output", microbatches=MICROBATCHES)
    with watched(args.quiet) as display, faults:
        profile = read_profile(args, display)
        with interruptible() as interrupt:
            found = sweep(
                profile,
                args.microbatches,
                {limit.words: limit for limit in args.memory_limits},
                **options(args, *TABLE_OPTIONS, "output"),
                cache=cache_folder(args),
                progress=display,
                should_stop=interrupt,
            )
    if args.json:
        print_json(found.to_dict())
    else:
        print(f"{found}\nwritten to {Path(args.output) / 'frontier.svg'} and beside it")
    return 0 if found.built else 1
