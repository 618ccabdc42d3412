"""Compares all families and the optimizer for one profile and memory limit."""

from __future__ import annotations

import argparse

from ...arguments import add_memory_limit, add_table, example
from ...failures import say
from ...inputs import searched
from ...output import answer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_table(parser, time_limit=20.0)
    add_memory_limit(parser)
    parser.add_argument(
        "--no-optimizer", action="store_true", help="compare only families, without a search"
    )
    example(
        parser,
        "pipeloom compare profile.json -m 24 --memory-limit 16",
        "pipeloom compare profile.json -m 24 --passing weights",
        "pipeloom compare layers.json -m 24 --max-layers 8",
        "pipeloom compare profile.json -m 24 --no-optimizer --json",
    )


def run(args: argparse.Namespace) -> int:
    from pipeloom.planner.compare import compare

    found = searched(args, compare, names=("memory_limit", "no_optimizer"))
    if found.interrupted:
        say("interrupted: optimize is the best so far")
    answer(args, found.to_dict(), found)
    return 0 if found.built else 1
