"""Finds the best schedule for each memory limit and plots the bubble rate against the limit.

Writes schedule-LIMIT.json for each feasible limit, results.json, results.csv and frontier.svg.
"""

from __future__ import annotations

import argparse

from ...arguments import Together, add_cache, add_folder, add_table, add_workers, example, limits
from ...inputs import searched
from ...output import answer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_table(parser, time_limit=20.0, what="each limit")
    parser.add_argument(
        "--memory-limits",
        metavar="A,B,...",
        action=Together,
        type=limits,
        required=True,
        help="activation memory limits of every rank, in the profile's unit (20G or 16GiB if that "
        "is bytes); none means no limit",
    )
    add_workers(parser, "limits")
    add_cache(
        parser,
        "for answers, from which a stopped sweep continues; by default, cache in the output folder",
    )
    add_folder(parser, "the results; made if absent", required=True)
    example(parser, "pipeloom sweep profile.json -m 24 --memory-limits 8,10,12,14,16 -o sweep/")


def run(args: argparse.Namespace) -> int:
    from pipeloom.planner.solving.workers import processes_here
    from pipeloom.planner.sweep import sweep

    args.workers = args.workers or processes_here()
    args.memory_limits = {limit.words: limit for limit in args.memory_limits}
    found = searched(args, sweep, names=("memory_limits", "output", "workers", "scheduler"))
    words = f"{found}\nfrontier.svg, results and schedules written to {args.output}"
    answer(args, found.to_dict(), words)
    return 0 if found.built else 1
