"""Lays all families and the optimizer side by side for one profile and memory limit."""

from __future__ import annotations

import argparse
import sys

from ..arguments import (
    add_instance,
    add_memory_limit,
    add_partition,
    add_passing,
    add_profile,
    add_solver,
    example,
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
    add_memory_limit(parser)
    parser.add_argument(
        "--no-optimizer", action="store_true", help="families alone, which takes no time"
    )
    add_solver(parser, time_limit=20.0)
    add_partition(parser)
    example(
        parser,
        "pipeloom compare profile.json -m 24 --memory-limit 16",
        "pipeloom compare profile.json -m 24 --passing weights",
        "pipeloom compare layers.json -m 24 --max-layers 8",
        "pipeloom compare profile.json -m 24 --no-optimizer --json",
    )


def run(args: argparse.Namespace) -> int:
    from pipeloom.planner.compare import compare

    with watched(args.quiet) as display, typed(*OPTIMIZER_OPTIONS, microbatches=MICROBATCHES):
        profile = read_profile(args, display)
        with interruptible() as interrupt:
            found = compare(
                profile,
                args.microbatches,
                **options(args, *TABLE_OPTIONS, "memory_limit", "no_optimizer"),
                cache=cache_folder(args),
                progress=display,
                should_stop=interrupt,
            )
    if found.interrupted:
        print("pipeloom: interrupted: optimize is the best so far", file=sys.stderr)
    if args.json:
        print_json(found.to_dict())
    else:
        print(found)
    return 0 if found.built else 1
