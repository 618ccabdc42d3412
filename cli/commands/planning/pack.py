"""Packs sequences into microbatches so that the planned step is shortest, and schedules these.

With a lower bound over all packings and all schedules. Ctrl-C or SIGTERM keeps the best so far.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from pipeloom.ir.errors import InputError

from ...argument_types import at_least_one, placement
from ...arguments import (
    add_cache,
    add_folder,
    add_instance,
    add_limits,
    add_memory_limit,
    add_quiet,
    add_seed,
    add_start,
    example,
)
from ...inputs import CACHE, searched
from ...output import answer, check_folder

NAMES = (
    "max_tokens", "data_parallel", "memory_limit", "objective", "placement", "start", "time_limit",
    "work_limit", "seed",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "lengths",
        metavar="LENGTHS",
        help="lengths file: tokens of each sequence, and what the profile's microbatch was; - for "
        "standard input",
    )
    parser.add_argument(
        "--profile",
        metavar="FILE",
        required=True,
        help="profile by stages, measured on one microbatch",
    )
    add_instance(parser)
    parser.add_argument(
        "--max-tokens", metavar="T", type=at_least_one, help="most tokens of a microbatch; any"
    )
    parser.add_argument(
        "--data-parallel",
        metavar="N",
        type=at_least_one,
        help="replicas of the pipeline, each of M microbatches; the profile's by default, else one",
    )
    add_memory_limit(parser)
    parser.add_argument(
        "--placement",
        metavar="P",
        type=placement,
        default="linear",
        help="where stages live, as of optimize: linear (the default), interleaved:K, v, wave:K, "
        "or a JSON file",
    )
    add_start(parser)
    add_limits(
        parser,
        "for packing and schedules together, 10 by default",
        "",
        "the same seed then gives the same packing",
    )
    add_seed(parser)
    add_cache(
        parser, f"in which schedules are kept and looked up; {CACHE} by default, if that is set"
    )
    add_quiet(parser)
    add_folder(parser, "the packing, its picture, and each replica's profile and schedule")
    example(
        parser,
        "pipeloom pack lengths.json --profile profile.json -m 16 --max-tokens 8192 -o packed",
        "pipeloom pack lengths.json --profile profile.json -m 16 --data-parallel 4 --json",
        "pipeloom pack next.json --profile profile.json -m 16 --start packed/schedule.json "
        "--time-limit 0.5 -o packed",
    )


def run(args: argparse.Namespace) -> int:
    from pipeloom.planner.pack import pack

    check_folder(args.output, "packing.json")
    _check_apart(args)
    found = searched(args, partial(pack, args.lengths), names=NAMES, table=())
    if args.output is not None:
        found.write(args.output)
    words = f"{found}\nwritten to {args.output}" if args.output else str(found)
    answer(args, found.to_dict() | {"output": args.output}, words)
    return 0


def _check_apart(args: argparse.Namespace) -> None:
    """Raises InputError where the profile that is read would be written over."""
    read, written = Path(args.profile), Path(args.output or ".") / "profile.json"
    known = args.output is not None and read.exists() and written.exists()
    if known and written.samefile(read):
        raise InputError(f"--output: expected a folder without --profile's file, got {written}")
